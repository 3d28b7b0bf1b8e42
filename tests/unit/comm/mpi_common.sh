# What test_mpi.sh and test_two_hosts.sh share; they define launch RANKS PROGRAM ARGUMENT….
# Expects $build and $work. Sourced, never run.
rank=$build/tests/comm/mpi_rank
# One thread a rank; and OpenMPI keeps what it allocates until the process ends.
export OMP_NUM_THREADS=1 ASAN_OPTIONS=detect_leaks=0

skip() {
  echo "skipped: $1"
  exit 77
}

need_mpi() {
  mpirun --version 2>/dev/null | grep -q "Open MPI" || skip "no mpirun of OpenMPI"
  [ -e "$build/libczero_mpi.so" ] || skip "built without MPI"
}

fail() {
  echo "$1" >&2
  cat "$work/log" >&2
  exit 1
}

count() { grep -cE -- "$1" "$work/log" || true; }

# Every rank comes to its end and the launcher is content.
all_ok() { # ranks, arguments of mpi_rank…
  local n=$1
  shift
  launch "$n" "$rank" "$@" >"$work/log" 2>&1 || fail "$n ranks, $*: exit code $?"
  [ "$(count ' ok$')" = "$n" ] || fail "$n ranks, $*: not every rank came to its end"
}

# Every rank gets the error that it expects; what the launcher makes of it does not matter.
all_expect() { # ranks, arguments of mpi_rank…
  local n=$1
  shift
  launch "$n" "$rank" "$@" >"$work/log" 2>&1 || true
  [ "$(count ' ok$')" = "$n" ] || fail "$n ranks, $*: not every rank got the error that it expected"
}

# The last rank is killed: the others end within 5 s, each naming rank, step and phase.
stops_when_killed() { # ranks, pattern of a survivor's sentence
  local n=$1 pattern=$2 job begin end
  rm -f "$work/killed"
  launch "$n" "$rank" kill "$work/killed" >"$work/log" 2>&1 &
  job=$!
  for _ in $(seq 600); do
    [ -e "$work/killed" ] && break
    sleep 0.1
  done
  [ -e "$work/killed" ] || fail "kill: the last rank did not come to its step"
  begin=$(date +%s%N)
  while pgrep -f "^$rank kill $work/killed" >/dev/null; do
    end=$(date +%s%N)
    [ $((end - begin)) -lt 5000000000 ] || fail "kill: ranks run on 5 s later: $(pgrep -af "^$rank kill")"
    sleep 0.05
  done
  wait $job && fail "kill: mpirun ended with exit code 0"
  [ "$(count "$pattern")" = $((n - 1)) ] || fail "kill: not every survivor said which rank was missing and where"
}
