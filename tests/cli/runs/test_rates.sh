#!/usr/bin/env bash
# Claim: a schedule that ends before its run, or has a rate of 0, is reported with numbers; a peak that is WarmupDecayLR's default
# and not the optimizer's rate is named by config check, config show and train. An lr that was asked for and that the schedule replaces is
# named by config check, train and --dry-run-lr.
. "$(dirname "$0")/../../support/command.sh"

head -c 3000 "$source_dir/examples/data/fortunes.txt" >text.txt
config() { # SCHEDULE
  echo "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_clipping\": 0,
         \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 2e-4}}, \"scheduler\": $1}" >ds.json
}
run() { "$czero" train --config ds.json --model gpt2-tiny --tokenizer bytes --data text.txt --seq-len 16 "$@" >out 2>err || fail "$*"; }
says() { [ "$(grep -cF -- "$1" err)" = 1 ] || fail "not reported once: $1"; }
silent() { ! grep -qE 'the (schedule|rate)' err || fail "reports: $(grep -E 'the (schedule|rate)' err)"; }

config '{"type": "WarmupDecayLR", "params": {"warmup_num_steps": 2, "total_num_steps": 5, "warmup_max_lr": 2e-4, "warmup_min_lr": 1e-5}}'
run --steps 5
silent
# DeepSpeed makes two updates at the minimum first, so the end is reached by step 7
run --steps 7
silent
run --steps 9 --save run
says 'warning: the schedule ends at step 5 of 9; the last 3 steps have a rate of 1e-05: "total_num_steps": "auto" is the length of the run'
run --steps 11 --resume run
says 'the last 2 steps have a rate of 1e-05'
config '{"type": "WarmupDecayLR", "params": {"warmup_num_steps": 2, "total_num_steps": 150, "warmup_max_lr": "auto"}}'
run --steps 225
says 'warning: the schedule ends at step 150 of 225; the last 74 steps have a rate of 0:'
run --steps 6
says 'czero: the schedule begins with a rate of 0 for 2 of 6 steps'
! grep -q 'warning: the schedule' err || fail "DeepSpeed's two first steps are no warning"
config '{"type": "linear", "params": {"total_num_steps": "auto"}}'
run --steps 4
silent
config '{"type": "linear", "params": {"total_num_steps": 4}}'
run --steps 5
says 'warning: the schedule ends at step 4 of 5; the last 1 step has a rate of 0:'
run --steps 10
says 'warning: the schedule ends at step 4 of 10; the last 6 steps have a rate of 0:'
config '{"type": "WarmupDecayLR", "params": {"warmup_num_steps": 100, "total_num_steps": "auto", "warmup_max_lr": "auto"}}'
run --steps 3
says 'total_num_steps 3 is below warmup_num_steps 100, so the rate never reaches its peak: lower warmup_num_steps, or train for more steps'
config '{"type": "constant", "params": {}}'
run --steps 4
silent
config '{"type": "LinearLR", "params": {"start_factor": 1, "end_factor": 0, "total_iters": 3}}'
run --steps 6
says 'warning: the rate is 0 in 3 of 6 steps, the last among them'
config '{"type": "WarmupLR", "params": {"warmup_num_steps": 1000, "warmup_max_lr": 1e-320}}'
run --steps 3

goes='scheduler.params.warmup_max_lr: is not given, so the rate goes to 0.001, WarmupDecayLR'"'"'s default, not to the optimizer'"'"'s 0.0002'
config '{"type": "WarmupDecayLR", "params": {"warmup_num_steps": 2, "total_num_steps": 5}}'
run --steps 5
says "$goes"
for action in check show; do
  "$czero" config $action ds.json >out 2>err || fail "config $action"
  says "$goes"
done
"$czero" config check ds.json --set optimizer.params.lr=0.001 >out 2>err || fail "config check"
! grep -q "goes to" err || fail "the same rate is no difference"
for given in 0.001 2e-4 null; do
  "$czero" config check ds.json --set scheduler.params.warmup_max_lr=$given >out 2>err || fail "config check with $given"
  ! grep -q "goes to" err || fail "a rate that is given is no default: $given"
done
config '{"type": "WarmupLR", "params": {"warmup_num_steps": 2}}'
"$czero" config check ds.json >out 2>err || fail "config check"
! grep -q "goes to" err || fail "WarmupLR goes to the optimizer's rate"

# A schedule with rates of its own replaces an lr that was asked for.
replaces() { # CONFIG_SCHEDULER SENTENCE OPTION…
  config "$1"
  local sentence=$2
  shift 2
  for action in "config check ds.json" "train --config ds.json --model gpt2-tiny --data text.txt --tokenizer bytes --seq-len 16 --steps 2 --dry-run-lr --quiet"; do
    "$czero" $action "$@" >out 2>err || fail "$action $*: $(cat err)"
    [ "$(grep -cF "$sentence" err)" = 1 ] || fail "$action $*: not once \"$sentence\": $(cat err)"
  done
}
warmup='{"type": "WarmupDecayLR", "params": {"warmup_num_steps": 1, "total_num_steps": 5, "warmup_max_lr": 5e-05}}'
replaces "$warmup" 'warmup_max_lr: 5e-05 of the scheduler replaces optimizer.params.lr 0.002' --set optimizer.params.lr=2e-3
replaces '{"type": "OneCycle", "params": {"cycle_min_lr": 1e-05, "cycle_max_lr": 0.01}}' \
  'cycle_max_lr: 0.01 of the scheduler replaces optimizer.params.lr 0.002' --set optimizer.params.lr=2e-3
replaces '{"type": "LRRangeTest", "params": {"lr_range_test_min_lr": 0.01}}' \
  'lr_range_test_min_lr: 0.01 of the scheduler replaces optimizer.params.lr 0.002' --set optimizer.params.lr=2e-3
config "$warmup"
for quiet in "" "--set optimizer.params.lr=5e-5" "--set optimizer.params.lr=2e-3 --set scheduler.params.warmup_max_lr=2e-3" \
  "--set optimizer.params.lr=2e-3 --set scheduler.params.warmup_max_lr=auto"; do
  "$czero" train --config ds.json --model gpt2-tiny --data text.txt --tokenizer bytes --seq-len 16 --steps 2 --dry-run-lr $quiet >out 2>err || fail "$quiet: $(cat err)"
  ! grep -q "replaces optimizer" err || fail "nothing is replaced: $quiet: $(cat err)"
done
refused 2 'replace the option by --set optimizer.params.lr=0.002 --set scheduler.params.warmup_max_lr=0.002' train --config ds.json --model gpt2-tiny --data text.txt --tokenizer bytes --seq-len 16 --steps 2 --lr 2e-3
