#!/usr/bin/env bash
# Claim: a run that saves at every step is killed at 60 random moments of saving (one process, all
# of two ranks, one of two ranks; stages 0 to 3 in turn, old tags removed on the way). Each time all
# tags that are there pass fsck, and the next run resumes from `latest` and saves again.
# CZERO_KILLS=N: N moments instead of 60 (test_kill_save_slow.sh).
set -uo pipefail
build=$(cd "$1" && pwd)
source_dir=$(cd "$(dirname "$0")/../../.." && pwd)
czero=$build/czero
kills=${CZERO_KILLS:-60}
work=$(mktemp -d /tmp/czero-kill-XXXXXX)
running=
cleanup() {
  [ -z "$running" ] || kill -KILL -- "-$running" 2>/dev/null
  rm -rf "$work"
}
trap cleanup EXIT
cd "$work" || exit 1
unset CZERO_LOG
export OMP_NUM_THREADS=1
RANDOM=5 # the same moments in each run of this test, as far as the machine allows
head -c 20000 "$source_dir/examples/data/fortunes.txt" >text.txt
mkdir model
cat >model/config.json <<'JSON'
{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 256, "n_positions": 16,
 "n_embd": 16, "n_layer": 1, "n_head": 2, "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
JSON
for stage in 0 1 2 3; do
  printf '{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, "optimizer": {"type": "AdamW",
    "params": {"lr": 0.001}}, "zero_optimization": {"stage": %s}}' $stage >s$stage.json
done

fail() {
  echo "kill $n ($how): $1" >&2
  ls -la ckpt ckpt/* >&2
  cat out.txt err.txt >&2
  exit 1
}

start() { # ranks stage: in a process group of its own
  local command=("$czero")
  [ "$1" = 1 ] || command+=(launch -n "$1" --)
  command+=(train --model model --init random --config "s$2.json" --data text.txt --tokenizer bytes
    --seq-len 8 --steps 1000000 --quiet --save ckpt --save-interval 1 --save-keep 2)
  [ ! -e ckpt/latest ] || command+=(--resume ckpt)
  set -m
  "${command[@]}" >out.txt 2>err.txt &
  running=$!
  set +m
}

# Whether this run has left, or is making, something that is not a tag yet or any more.
is_saving() {
  local path
  for path in ckpt/.*.saving ckpt/.*.deleting ckpt/latest.tmp*; do
    [ "$path" -nt started ] && return 0
  done
  return 1
}

# Until a save of this run has begun: it has resumed, and trained a step.
wait_for_save() {
  local tries=0
  until is_saving; do
    kill -0 "$running" 2>/dev/null || fail "the run ended by itself"
    [ $((tries += 1)) -lt 6000 ] || fail "the run does not save"
    sleep 0.005
  done
}

hit=0
n=0
while [ $hit -lt "$kills" ] && [ $n -lt $((kills * 4)) ]; do
  case $((n % 5)) in
    0 | 1) how=alone ranks=1 ;;
    2 | 3) how="all ranks" ranks=2 ;;
    4) how="one rank" ranks=2 ;;
  esac
  touch started
  start $ranks $((RANDOM % 4))
  wait_for_save
  sleep "0.$(printf %03d $((RANDOM % 60)))"
  victim=-$running
  if [ "$how" = "one rank" ]; then
    mapfile -t pids < <(pgrep -P "$running")
    [ ${#pids[@]} = 2 ] || fail "${#pids[@]} ranks"
    victim=${pids[RANDOM % 2]}
  fi
  kill -KILL -- "$victim" || fail "there is nothing to kill"
  wait "$running" 2>/dev/null && fail "a killed run ends well"
  for ((tries = 0; tries < 400; tries++)); do # ranks may end after their launcher, and hold the folder's lock until then
    pgrep -g "$running" >/dev/null || break
    sleep 0.005
  done
  running=
  is_saving && hit=$((hit + 1))
  n=$((n + 1))
  [ -e ckpt/latest ] || continue # killed in the very first save
  "$czero" fsck ckpt --all --quiet >out.txt 2>err.txt || fail "fsck finds damage"
done

how=none
[ -e ckpt/latest ] || fail "nothing was ever saved"
last=$(sed 's/global_step//' ckpt/latest)
"$czero" train --model model --init random --config s2.json --data text.txt --tokenizer bytes --seq-len 8 --quiet \
  --steps $((last + 2)) --resume ckpt --save ckpt --save-keep 2 >out.txt 2>err.txt || fail "the end"
[ "$(cat ckpt/latest)" = "global_step$((last + 2))" ] || fail "the last save is not there"
compgen -G 'ckpt/.*' >/dev/null && fail "leftovers stay"
[ "$(find ckpt -mindepth 1 -maxdepth 1 -type d ! -name model | wc -l)" = 2 ] || fail "old tags stay"
[ $hit -ge "$kills" ] || fail "only $hit of $n kills were in the middle of a save"
echo "$n kills, $hit of them in the middle of a save, up to step $last"
