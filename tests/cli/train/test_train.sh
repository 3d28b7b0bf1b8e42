#!/usr/bin/env bash
# Claim: `czero train` learns, writes its curve, its JSON lines and a model that `czero generate`
# reads; the same command gives the same bytes; SIGTERM ends it with exit code 0.
set -euo pipefail
build=$(cd "$1" && pwd)
source_dir=$(cd "$(dirname "$0")/../../.." && pwd)
czero=$build/czero
work=$(mktemp -d /tmp/czero-train-XXXXXX)
trap 'rm -rf "$work"' EXIT
cd "$work"
head -c 100000 "$source_dir/examples/data/fortunes.txt" >text.txt
train=("$czero" train --config "$source_dir/configs/quickstart.json" --model gpt2-tiny
  --data text.txt --tokenizer bytes --seq-len 32)

"${train[@]}" --steps 60 --curve curve.csv --export model --log-json >log.jsonl 2>err.txt
test "$(head -1 curve.csv)" = "step,loss,lr_next,grad_norm,loss_scale"
test "$(wc -l <curve.csv)" = 61
test "$(wc -l <log.jsonl)" = 60
for key in loss lr_next grad_norm loss_scale skipped samples elapsed_s tokens_per_s sent_bytes; do
  test "$(grep -c "\"$key\": [0-9]" log.jsonl)" = 60 || { echo "no $key in every line"; head -1 log.jsonl; exit 1; }
done
awk -F, 'NR==2 {first=$2} END {exit !($2 < first - 1.5)}' curve.csv ||
  { echo "the loss did not fall:"; cat curve.csv; exit 1; }
grep -q 'step 60/60' err.txt
grep -q 'tok/s' err.txt

"$czero" generate --model model --tokenizer bytes --prompt "The " --max-new-tokens 20 >text1.txt
"$czero" generate --model model --tokenizer bytes --prompt "The " --max-new-tokens 20 >text2.txt
cmp text1.txt text2.txt
test -s text1.txt

# Repeatable to the byte, shuffling and all
"${train[@]}" --steps 5 --curve a.csv --export a --quiet >/dev/null
"${train[@]}" --steps 5 --curve b.csv --export b --quiet >b.out 2>b.err
cmp a.csv b.csv
cmp a/model.safetensors b/model.safetensors
test ! -s b.out && test ! -s b.err # --quiet prints nothing on success

# What the config asks for is printed on stderr, and --quiet wins over it
cat >report.json <<'JSON'
{"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": 0.001}}, "gradient_clipping": 1.0,
 "log_level": "info", "steps_per_print": 1, "wall_clock_breakdown": true, "flops_profiler": {"enabled": true}}
JSON
report=("${train[@]}" --config report.json --steps 3)
"${report[@]}" >report.out 2>report.err
test ! -s report.out
grep -q '^czero: \[Rank 0\] time (ms) | fwd: ' report.err
grep -q '^czero: Profile Summary at step 2:' report.err
grep -q '^czero: epoch=0/micro_step=3/global_step=3, RunningAvgSamplesPerSec=' report.err
"${report[@]}" --quiet >report.out 2>report.err
test ! -s report.out && test ! -s report.err

# A 1-bit optimizer whose freeze step is beyond the run's end trains, and says so once
for type in onebit_adam:freeze_step onebit_lamb:freeze_step zero_one_adam:var_freeze_step; do
  onebit=("${train[@]}" --config "$source_dir/configs/${type%:*}.json" --steps 3 --quiet)
  "${onebit[@]}" 2>onebit.err
  test "$(grep -c "${type#*:}: with .*, a run of 3 steps ends during the warm-up" onebit.err)" = 1
  "${onebit[@]}" --set "optimizer.params.${type#*:}=2" 2>onebit.err
  test ! -s onebit.err
  code=0
  "${onebit[@]}" --set zero_optimization.stage=2 2>onebit.err || code=$?
  test $code = 2
  grep -q 'zero_optimization.stage: not supported with .*; stages 0 and 1 work' onebit.err
done

# OneBitLamb that resumes past its freeze without trust ratios says that they will be too small
"${train[@]}" --steps 3 --save adam --quiet
lamb=("${train[@]}" --config "$source_dir/configs/onebit_lamb.json" --resume adam --quiet)
"${lamb[@]}" --steps 5 --set optimizer.params.freeze_step=2 2>onebit.err
test "$(grep -c 'freeze_step: 2 is after step 3, .* makes them 0.1 times .*; set it to 13 or more' onebit.err)" = 1
"${lamb[@]}" --steps 15 --set optimizer.params.freeze_step=13 2>onebit.err
test "$(grep -c 'freeze_step: 13 is behind' onebit.err)" = 0

# The exported folder is a starting point again
"${train[@]}" --steps 2 --model model --quiet --curve c.csv
awk -F, 'NR==2 {exit !($2 < 4.5)}' c.csv

"${train[@]}" --steps 1000000 --curve d.csv --quiet &
pid=$!
for _ in $(seq 100); do [ -s d.csv ] && [ "$(wc -l <d.csv)" -gt 3 ] && break; sleep 0.1; done
kill -TERM $pid
wait $pid

# The rates that a run would have are those that it has
"${train[@]}" --steps 6 --quiet --dry-run-lr --export never >rates.csv
"${train[@]}" --steps 6 --quiet --curve e.csv
test "$(head -1 rates.csv)" = step,lr && test ! -e never
diff <(tail -n +3 rates.csv | cut -d, -f2) <(sed 1d e.csv | head -n 5 | cut -d, -f3)
test "$("${train[@]}" --epochs 1 --quiet --dry-run-lr | tail -n 1 | cut -d, -f1)" = 196

# Closed standard streams: what would be printed goes into no file of the run's
"${train[@]}" --steps 3 --metrics open.csv --save open --quiet
"${train[@]}" --steps 3 --metrics closed.csv --save closed --log-json <&- >&- 2>&- && exit 1 # stdout takes nothing
cmp <(cut -d, -f1-8 open.csv) <(cut -d, -f1-8 closed.csv)
"$czero" fsck closed --quiet
# A run that continues has weights, whatever the model's folder lacks
"${train[@]}" --model open/model --resume open --steps 4 2>resumed.err
if grep -q random resumed.err; then cat resumed.err; exit 1; fi
"$build/zero_to_fp32" open o --quiet
"$build/zero_to_fp32" closed c --debug <&- >&- 2>&- && exit 1
cmp o/pytorch_model.bin c/pytorch_model.bin

"${train[@]}" --steps 3 --eval-data text.txt --quiet >out
grep -qE '^eval_loss [0-9.]+$' out
echo "trained, exported, generated, repeated, stopped"
