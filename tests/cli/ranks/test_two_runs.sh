#!/usr/bin/env bash
# Claim: a second run into a folder of checkpoints or exports that a run uses is refused with that run's process and
# host, also with --resume and --force; a killed run is no obstacle, whatever its text says; ranks of one run share the
# folder; nothing is left behind.
. "$(dirname "$0")/../../support/command.sh"
printf '{"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": 0.001}}}' >ds.json
for i in {1..40}; do echo "row $i of a text to train on"; done >t.txt
run=(train --config ds.json --model gpt2-tiny --tokenizer bytes --data t.txt --seq-len 16)
first= # process
trap 'kill -9 $first 2>/dev/null || true; rm -rf "$work"' EXIT
begin() { # ARGUMENTS…: a long run
  "$czero" "${run[@]}" --steps 1000000 --quiet "$@" >first.out 2>first.err &
  first=$!
  for _ in $(seq 200); do
    grep -qs "process $first on $(hostname)" a/.czero-run b/.czero-run && return 0
    sleep 0.05
  done
  fail "the first run takes no folder"
}
end() { # SIGNAL CODE
  kill "-$1" $first
  local code=0
  wait $first 2>/dev/null || code=$?
  [ $code = "$2" ] || fail "SIG$1: exit code $code: $(cat first.err)"
}
begin --save a --save-interval 1
for more in "" --force "--resume auto"; do
  # shellcheck disable=SC2086
  refused 1 "--save: a: is in use by process $first on $(hostname)" "${run[@]}" --steps 1 --save a $more
done
refused 1 "is in use by process $first" "${run[@]}" --steps 1 --save ../"$(basename "$work")"/a/
end KILL 137
[ -e a/.czero-run ] || fail "a killed run leaves its file, which this test needs"
"$czero" "${run[@]}" --steps 1 --save a --force >out 2>err || fail "a killed run is in the way"
[ ! -e a/.czero-run ] || fail "a run that ended left its file"
begin --export b
refused 1 "--export: b: is in use by process $first" "${run[@]}" --steps 1 --export b
refused 1 "b: is in use by process $first" export a b
end TERM 0
[ ! -e b/.czero-run ] || fail "a stopped run left its file"
# what a killed run of another host, or of no process, left
for text in "" "0000000100000002deadbeef-1-2
process 1 on elsewhere" "no mark"; do
  printf '%s\n' "$text" >a/.czero-run
  "$czero" "${run[@]}" --steps 1 --save a --force >out 2>err || fail "a left text is in the way: $text"
done
"$czero" launch -n 2 --bind none "${run[@]}" --steps 1 --save c --export c --quiet >out 2>err || fail "ranks of one run"
[ -z "$(find a b c -name '.czero*')" ] || fail "something is left"
refused 2 "a/nothing: there is no such folder" export a/nothing new/er
[ ! -e new/er ] || fail "a failed export made its folder"
