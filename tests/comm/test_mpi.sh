#!/usr/bin/env bash
# Claim: over MPI, 2 to 8 ranks on however few cores carry what they are given.
set -euo pipefail
build=$1
mpirun --version 2>/dev/null | grep -q "Open MPI" || { echo "skipped: no mpirun of OpenMPI"; exit 77; }
test -e "$build/libczero_mpi.so" || { echo "skipped: built without MPI"; exit 77; }
work=$(mktemp -d /tmp/czero-mpi-XXXXXX)
trap 'rm -rf "$work"' EXIT
rank=$build/tests/comm/mpi_rank
# OpenMPI keeps what it allocates until the process ends.
export ASAN_OPTIONS=detect_leaks=0

launch() { # ranks, arguments of mpi_rank…
  local n=$1
  shift
  timeout -k 5 120 mpirun --allow-run-as-root --oversubscribe -n "$n" "$rank" "$@"
}

fail() {
  echo "$1" >&2
  cat "$work/log" >&2
  exit 1
}

# All n ranks say so and the launcher is content.
all_ok() { # ranks, arguments…
  launch "$@" >"$work/log" 2>&1 || fail "$*: exit code $?"
  [ "$(grep -c ' ok$' "$work/log")" = "$1" ] || fail "$*: not every rank came to its end"
}

all_ok 2 slots 400
all_ok 3 slots 200
all_ok 8 slots 60
echo "slots carried by 2, 3 and 8 ranks"
