#!/usr/bin/env bash
# Claim: commands that compute, and ranks, wait briefly for their threads, unless the user says how to wait; the
# environment of a program that uses the library stays; an engine with two threads gives the same results either way.
. "$(dirname "$0")/../../support/command.sh"
unset GOMP_SPINCOUNT OMP_WAIT_POLICY
printf '{"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": 0.001}}}' >ds.json
for i in {1..40}; do echo "row $i of a text to train on"; done >t.txt
run=(train --config ds.json --model gpt2-tiny --tokenizer bytes --data t.txt --seq-len 16 --quiet)
waits() { # WANTED NAME=VALUE…: what the running command has
  local wanted=$1 seen=
  shift
  env "$@" "$czero" "${run[@]}" --steps 1000000 --save a --force >out 2>err &
  for _ in $(seq 100); do
    [ ! -e a/.czero-run ] || seen=$(tr '\0' '\n' <"/proc/$!/environ" | grep -E '^(GOMP_SPINCOUNT|OMP_WAIT_POLICY)=' || true)
    [ ! -e a/.czero-run ] || break
    sleep 0.05
  done
  kill -9 $!
  wait $! 2>/dev/null || true
  rm -rf a
  [ "$seen" = "$wanted" ] || fail "waits by '$seen' instead of '$wanted'"
}
waits GOMP_SPINCOUNT=1000
waits GOMP_SPINCOUNT=7 GOMP_SPINCOUNT=7
waits OMP_WAIT_POLICY=active OMP_WAIT_POLICY=active
seen=$("$czero" launch -n 1 -- /bin/sh -c 'echo $GOMP_SPINCOUNT$OMP_WAIT_POLICY' 2>err)
[ "$seen" = 1000 ] || fail "a rank waits by '$seen'"
seen=$(OMP_WAIT_POLICY=active "$czero" launch -n 1 -- /bin/sh -c 'echo $GOMP_SPINCOUNT$OMP_WAIT_POLICY' 2>err)
[ "$seen" = active ] || fail "a rank waits by '$seen'"
export OMP_NUM_THREADS=2
"$czero" "${run[@]}" --steps 3 --curve a.csv >out 2>err || fail "no run"
GOMP_SPINCOUNT=300000 "$czero" "${run[@]}" --steps 3 --curve b.csv >out 2>err || fail "no run"
cmp a.csv b.csv || fail "waiting changes results"
for bad in abc 0 4x; do # the OpenMP runtime says something as well
  OMP_NUM_THREADS=$bad refused 2 "OMP_NUM_THREADS=$bad: use a number of threads, such as 4" "${run[@]}" --steps 1
done
