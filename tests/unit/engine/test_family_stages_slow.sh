#!/usr/bin/env bash
# test_family_stages.sh for the tiny preset of every decoder.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mapfile -t presets < <(grep -oh '"[a-z0-9-]*-tiny"' "$here"/../../../model/{decoder,gpt2}/*.c | tr -d '"' | sort -u)
[ ${#presets[@]} -ge 13 ] || { echo "only ${presets[*]}" >&2; exit 1; }
exec "$here/test_family_stages.sh" "$1" "${presets[@]}"
