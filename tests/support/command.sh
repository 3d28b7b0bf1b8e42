# Sourced by tests of commands, with the build folder as $1: they work in a folder of their own that goes with them, with
# one thread, and keep a command's output in out and err, which fail() shows.
#   . "$(dirname "$0")/../../support/command.sh"
set -euo pipefail
build=$(cd "$1" && pwd)
source_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
czero=$build/czero
work=$(mktemp -d /tmp/czero-test-XXXXXX)
trap 'rm -rf "$work"' EXIT
cd "$work"
unset CZERO_LOG
export OMP_NUM_THREADS=1

fail() {
  echo "$1" >&2
  tail -n 20 out err >&2 || true
  exit 1
}

# czero has to end with this code and these words on stderr.
refused() { # CODE WORDS ARGUMENTS…
  local code=$1 words=$2 got=0
  shift 2
  "$czero" "$@" >out 2>err || got=$?
  [ $got = "$code" ] || fail "$*: exit code $got instead of $code"
  grep -qF -- "$words" err || fail "$*: no \"$words\""
}
