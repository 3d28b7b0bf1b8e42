#!/usr/bin/env bash
# Claim: names, labels, keys, paths and texts with control characters, escape sequences, line feeds, marks of
# direction or broken UTF-8, given to every command by every kind of file, reach its output, its messages and the text
# files that it writes only as escapes; no name forges a line; JSON stays valid.
set -euo pipefail
build=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d /tmp/czero-hostile-XXXXXX)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 "$here/hostile_names.py" "$build"
