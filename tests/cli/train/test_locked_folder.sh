#!/usr/bin/env bash
# Claim: a user with read access to nvme_path that keeps its lock stops no run. Whether the lock is taken before the
# run starts, while it trains or before it ends, the run trains, ends by itself, and obeys SIGTERM
# and SIGHUP within two seconds; one sentence says what is left out, and its swap file goes.
# The lock's keeper is another user where this test runs as root.
set -uo pipefail
build=$(cd "$1" && pwd)
source_dir=$(cd "$(dirname "$0")/../../.." && pwd)
czero=$build/czero
work=$(mktemp -d /tmp/czero-locked-XXXXXX)
keeper= running=
cleanup() {
  [ -z "$keeper" ] || kill "$keeper" 2>/dev/null
  [ -z "$running" ] || kill -KILL "$running" 2>/dev/null
  rm -rf "$work"
}
trap cleanup EXIT
chmod 0755 "$work"
cd "$work" || exit 1
command -v flock >/dev/null || { echo "skipped: flock(1) of util-linux is missing"; exit 77; }
as_other=()
if [ "$(id -u)" = 0 ]; then
  command -v setpriv >/dev/null || { echo "skipped: setpriv of util-linux is missing"; exit 77; }
  as_other=(setpriv --reuid 65534 --regid 65534 --clear-groups)
fi
unset CZERO_LOG
head -c 40000 "$source_dir/examples/data/fortunes.txt" >text.txt
mkdir -m 0755 swap
cat >config.json <<JSON
{"train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": true},
 "optimizer": {"type": "AdamW", "params": {"lr": 0.003}},
 "zero_optimization": {"stage": 3,
   "offload_optimizer": {"device": "nvme", "nvme_path": "$work/swap"},
   "offload_param": {"device": "nvme", "nvme_path": "$work/swap", "max_in_cpu": 0}}}
JSON

fail() {
  echo "$1" >&2
  ls -la swap >&2
  cat out.txt err.txt >&2
  exit 1
}
lock() {
  rm -f locked

  "${as_other[@]}" flock --no-fork -x swap sh -c 'echo locked; exec sleep 600' >locked &
  keeper=$!
  for _ in $(seq 200); do
    [ ! -s locked ] || return 0
    sleep 0.05
  done
  fail "the folder could not be locked"
}
unlock() {
  kill "$keeper" && wait "$keeper" 2>/dev/null
  keeper=
}
start() { # STEPS
  "$czero" train --config config.json --model gpt2-tiny --data text.txt --tokenizer bytes --seq-len 16 \
    --seed 3 --steps "$1" >out.txt 2>err.txt &
  running=$!
}
trains() {
  for _ in $(seq 400); do
    if grep -q 'step 1/' out.txt err.txt; then return 0; fi
    kill -0 "$running" 2>/dev/null || fail "the run ended before it trained: $1"
    sleep 0.05
  done
  fail "no step was made: $1"
}
ends() { # SECONDS WHAT: the run's exit code is in $code
  local -i waited=0 limit=$((1000 * $1))
  while kill -0 "$running" 2>/dev/null; do
    sleep 0.02
    waited+=20
    [ $waited -le $limit ] || fail "still runs after $1 s: $2"
  done
  wait "$running"
  code=$?
  running=
  [ -z "$(ls swap)" ] || fail "swap files stay: $2"
}
said() {
  [ "$(grep -c 'another process keeps the folder locked' err.txt)" = 1 ] || fail "not said once: $1"
}
asked() { # SIGNAL CODES WHAT
  kill -s "$1" "$running"
  ends 2 "$3"
  [[ " $2 " == *" $code "* ]] || fail "exit code $code: $3"
}

lock
start 1000000
trains "locked before"
asked TERM "0 143" "locked before, SIGTERM while it trains"
said "locked before"
start 1000000
trains "locked before"
asked HUP 129 "locked before, SIGHUP while it trains"
for pause in 0.1 0.3 0.6; do
  start 1000000
  sleep "$pause"
  asked TERM "0 143" "locked before, SIGTERM after $pause s"
done
start 3
ends 60 "locked before, ends by itself"
[ $code = 0 ] || fail "exit code $code: locked before, ends by itself"
unlock

start 1000000
trains "locked later"
lock
asked TERM "0 143" "locked later, SIGTERM"
unlock

start 150
trains "locked before the end"
lock
ends 60 "locked before the end"
[ $code = 0 ] || fail "exit code $code: locked before the end"
unlock
start 2
ends 60 "not locked"
[ $code = 0 ] || fail "exit code $code: not locked"
if grep -q 'folder locked' err.txt; then fail "said without a lock"; fi
echo "runs under a lock that another user keeps: 9"
