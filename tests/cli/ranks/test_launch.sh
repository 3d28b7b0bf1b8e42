#!/usr/bin/env bash
# Claim: `czero launch` starts N ranks with their environment, share of the cores and output; a rank
# that fails or is killed ends the others, with the exit code and the sentence of the culprit; no process is left behind, whichever process is killed; signals are passed on; --hostfile becomes mpirun.
set -euo pipefail
build=$(cd "$1" && pwd)
czero=$build/czero
work=$(mktemp -d /tmp/czero-launch-XXXXXX)
trap 'rm -rf "$work"' EXIT
cd "$work"
unset OMP_NUM_THREADS OMP_WAIT_POLICY CZERO_LOG

fail() {
  echo "$1" >&2
  cat out err >&2
  exit 1
}
expect() { # exit code, pattern on stderr, command …
  local code=$1 pattern=$2 got=0
  shift 2
  "$@" >out 2>err </dev/null || got=$?
  [ "$got" = "$code" ] || fail "$*: exit $got, not $code"
  [ -z "$pattern" ] || grep -qE -- "$pattern" err || fail "$*: no \"$pattern\""
}
launch() { "$czero" launch "$@"; }
script() { # name: reads the program from stdin
  { echo '#!/usr/bin/env bash'; cat; } >"$1"
  chmod +x "$1"
}
gone() { # pattern of a command line: no such process within 3 s
  for _ in $(seq 30); do
    pgrep -f -- "$1" >/dev/null || return 0
    sleep 0.1
  done
  pgrep -af -- "$1" >&2
  return 1
}
nap=$((900000 + $$)) # seconds; also a name that no other test's processes have
now_ms() { date +%s%3N; }

# ---- usage
launch --help >out
grep -q 'Usage: czero launch -n N' out
grep -q 'launch ' <("$czero" --help)
touch err
expect 2 '-n: 0 is less than 1' launch -n 0 -- true
expect 2 'not a whole number' launch -n two -- true
expect 2 'COMMAND is missing' launch -n 2
expect 2 'COMMAND is missing' launch -n 2 --
expect 2 '-n and COMMAND are missing' launch
expect 2 '"trian" is neither a czero command nor a program; did you mean train?' launch -n 2 trian
expect 2 'did you mean -n?' launch --nproc_per_node 2 train
expect 2 '-n is missing' launch -- true
expect 2 'unknown option --hosts' launch -n 2 --hosts x -- true
expect 2 '"bananas" is not a czero command: there is no program "bananas" on PATH' launch -n 2 -- bananas
expect 2 'cannot run ./nothing: No such file' launch -n 2 -- ./nothing
expect 2 'cannot run ./: Is a directory' launch -n 2 -- ./
expect 2 'launch cannot launch itself' launch -n 2 -- launch -n 2 -- true
printf 'no program' >broken && chmod +x broken
expect 2 'cannot run ./broken: Exec format error' launch -n 2 -- ./broken
expect 0 '' launch -n 2 -- config --help # a command of czero
grep -q 'Usage: czero config' out
expect 0 '' launch -n 3 -- true # a program on PATH

# ---- environment, output, exit 0
script say <<'SH'
echo "$CZERO_RANK of $CZERO_WORLD_SIZE $*"
echo "threads $OMP_NUM_THREADS" >&2
[ -e /proc/self/fd/"$CZERO_SHM_FD" ] || echo "no segment" >&2
[ "$CZERO_RANK" = 0 ] || read -r line && echo "read $line" >&2
exit 0
SH
expect 0 '' launch -n 4 -- ./say "a b"
[ "$(sort out)" = "$(printf '%d of 4 a b\n' 0 1 2 3)" ] || fail "stdout"
n_cores=$(nproc)
share=$((n_cores / 4 > 0 ? n_cores / 4 : 1))
for r in 1 2 3; do grep -qx "\[rank $r\] threads $share" err || fail "no threads of rank $r"; done
grep -qx "threads $share" err || fail "rank 0 has no prefix"
! grep -q 'no segment' err || fail "no segment"
! grep -q '^\[rank [123]\] read .' err || fail "another rank than 0 reads stdin"
OMP_NUM_THREADS=3 launch -n 2 -- ./say 2>err >out
grep -qx 'threads 3' err || fail "the user's OMP_NUM_THREADS"
[ "$n_cores" -ge 4 ] || grep -q '^czero: .*more than the cores' <(launch -n 4 -- true 2>&1) ||
  fail "more ranks than cores are not mentioned"

# ---- binding: every rank has cores of its own
script mask <<'SH'
grep Cpus_allowed_list /proc/self/status
SH
if [ "$n_cores" -ge 2 ]; then
  [ "$(launch -n 2 -- ./mask | sort -u | wc -l)" = 2 ] || fail "two ranks on the same cores"
  [ "$(launch -n 2 --bind none -- ./mask | sort -u | wc -l)" = 1 ] || fail "--bind none binds"
fi
[ "$(launch -n $((n_cores + 1)) -- ./mask 2>/dev/null | sort -u)" = "$(./mask)" ] ||
  fail "more ranks than cores are bound"

# ---- prefixes
script lines <<'SH'
[ "$CZERO_RANK" = 1 ] || exit 0
echo 'czero: warning: [rank 1/2 step 3] log' >&2
echo 'plain' >&2
printf 'cut' >&2
sleep 0.2
printf ' in two\nunfinished' >&2
head -c 10000 /dev/zero | tr '\0' x
echo
SH
expect 0 '^czero: warning: \[rank 1/2 step 3\] log$' launch -n 2 -- ./lines
grep -qx '\[rank 1\] plain' err || fail "plain"
grep -qx '\[rank 1\] cut in two' err || fail "cut in two"
grep -qx '\[rank 1\] unfinished' err || fail "unfinished"
[ "$(wc -lc <out | tr -s ' ')" = " 1 10001" ] || fail "a long line: $(wc -lc <out)"

# ---- failing ranks
script fails <<'SH'
[ "$CZERO_RANK" = 2 ] && exit 3
sleep 0.3
exit 1
SH
expect 3 'czero: rank 2 ended with exit code 3' launch -n 4 -- ./fails
script fails_late <<'SH'
[ "$CZERO_RANK" = 2 ] || exit 1 # as a rank that learns of another's failure
sleep 0.3
exit 4
SH
expect 4 'czero: rank 2 ended with exit code 4' launch -n 4 -- ./fails_late
expect 1 'czero: all ranks ended with exit code 1' launch -n 3 -- false

script dies <<'SH'
if [ "$CZERO_RANK" = 1 ]; then kill -KILL $$; fi
exec sleep "$1"
SH
begin=$(now_ms)
expect 1 'rank 1 was killed by SIGKILL \(peak memory' launch -n 3 -- ./dies $nap
[ $(($(now_ms) - begin)) -lt 2000 ] || fail "took $(($(now_ms) - begin)) ms"
gone "sleep $nap"
script segv <<'SH'
[ "$CZERO_RANK" = 0 ] && kill -SEGV $$
exit 0
SH
expect 1 'rank 0 was killed by SIGSEGV' launch -n 2 -- ./segv

# Ranks that do not hear SIGTERM, and children that ranks leave behind
script deaf <<'SH'
trap '' TERM
[ "$CZERO_RANK" = 0 ] && exit 5
sleep "$1" &
while true; do sleep 0.1; done
SH
begin=$(now_ms)
expect 5 'rank 0 ended with exit code 5' launch -n 3 -- "$work/deaf" $nap
[ $(($(now_ms) - begin)) -lt 5000 ] || fail "took $(($(now_ms) - begin)) ms"
gone "sleep $nap"
gone "$work/deaf"

# ---- signals
script waits <<'SH'
trap 'echo "rank $CZERO_RANK stops"; exit 0' TERM INT
touch "up.$CZERO_RANK"
while true; do sleep 0.05; done
SH
for signal in TERM INT; do
  rm -f up.*
  # A background job of a script ignores SIGINT: start it with the default.
  env --default-signal=INT "$czero" launch -n 3 -- ./waits >out 2>err &
  pid=$!
  for _ in $(seq 100); do [ -e up.0 ] && [ -e up.1 ] && [ -e up.2 ] && break; sleep 0.05; done
  kill -"$signal" $pid
  code=0
  wait $pid || code=$?
  [ $code = 0 ] || fail "$signal: exit $code"
  [ "$(sort out)" = "$(printf 'rank %d stops\n' 0 1 2)" ] || fail "$signal was not passed on"
done

"$czero" launch -n 3 -- sleep $nap &
pid=$!
for _ in $(seq 100); do [ "$(pgrep -fc "^sleep $nap")" = 3 ] && break; sleep 0.05; done
kill -TERM $pid
code=0
wait $pid 2>err || code=$?
[ $code = 143 ] || fail "ended by the signal asked for: exit $code"

# The launcher killed: nothing survives
"$czero" launch -n 3 -- sleep $nap &
pid=$!
for _ in $(seq 100); do [ "$(pgrep -fc "^sleep $nap")" = 3 ] && break; sleep 0.05; done
kill -KILL $pid
wait $pid 2>err || true
gone "sleep $nap"

# ---- limits: the soft limit of open files is raised; a hard one is a sentence
(
  ulimit -S -n 32
  launch -n 24 -- sh -c 'exit 0' >out 2>err
) || fail "24 ranks with a soft limit of 32 files"
(
  ulimit -n 24
  code=0
  launch -n 40 -- sleep $nap >out 2>err || code=$?
  [ $code = 1 ]
) || fail "40 ranks with 24 files"
grep -q 'Too many open files' err || fail "no sentence about open files"
gone "sleep $nap"

# ---- several hosts: mpirun's words
mkdir bin
script bin/mpirun <<'SH'
printf '%s\n' "$@" >mpirun.words
exit 7
SH
printf 'one slots=2\ntwo slots=2\n' >hosts
expect 2 'cannot read nohosts: No such file' launch -n 4 --hostfile nohosts -- train
code=0
PATH=$work/bin:$PATH CZERO_ISA=avx2 OMP_NUM_THREADS=2 CZERO_SHM_FD=9 \
  "$czero" launch -n 4 --hostfile hosts -- train --config "a b.json" || code=$?
[ $code = 7 ] || fail "mpirun's exit code became $code"
paste -sd'|' mpirun.words >out
root=
[ "$(id -u)" != 0 ] || root='--allow-run-as-root\|'
grep -qE -- "^-n\|4\|--hostfile\|hosts\|${root}--bind-to\|none\|" out || fail "mpirun's words"
grep -qF -- "|$czero|train|--config|a b.json" out || fail "the command behind mpirun's words"
for name in CZERO_ISA OMP_NUM_THREADS CZERO_BIND; do
  grep -qF -- "|-x|$name|" out || fail "$name does not travel"
done
! grep -qF -- 'CZERO_SHM_FD' out || fail "CZERO_SHM_FD travels"
mkdir empty
expect 2 'needs mpirun \(OpenMPI\), which is not on PATH' \
  env PATH="$work/empty" "$czero" launch -n 4 --hostfile hosts -- train
echo "launched, bound, prefixed, ended, passed on, wrapped"
