#!/usr/bin/env bash
# Claim: a run, export, evaluation or prediction of weights or losses that are not finite never ends as a success, and names
# the tensor, the text or the numbers; NaN is never the best, nor printed with a sign; what fp16 cannot hold is not exported in it.
. "$(dirname "$0")/../../support/command.sh"

head -c 3000 "$source_dir/examples/data/fortunes.txt" >text.txt
printf 'text,label\ngood day,pos\nbad day,neg\nno way,neg\n' >labels.csv
"$czero" vocab --data text.txt --kind wordpiece --size 100 -o vocab >out 2>err || fail "vocab"
printf 'good O\nday B-X\n\nbad O\n\n' >words.conll
cat >ds.json <<'JSON'
{"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 0, "zero_allow_untested_optimizer": true,
 "optimizer": {"type": "SGD", "params": {"lr": 1e30}}}
JSON
no_sign() { ! grep -q -e -nan out err || fail "$*: -nan"; }
lm=(train --config ds.json --model gpt2-tiny --tokenizer bytes --data text.txt --seq-len 16)
cls=(train --config ds.json --model bert-tiny --tokenizer vocab --seq-len 16)
tokens=("${cls[@]}" --task token-classification --data words.conll --eval-data words.conll)
cls+=(--task classification --data labels.csv --eval-data labels.csv)
for name in lm cls tokens; do
  declare -n run=$name
  refused 1 'of its 6 steps were skipped' "${run[@]}" --steps 6 --export $name-x --log-json
  no_sign $name
  [ ! -e $name-x/model.safetensors ] || fail "$name: exported"
done
refused 1 'steps were skipped' "${cls[@]}" --epochs 4 --best-metric accuracy --save best --export best-x
! grep -q '(best)' err || fail "NaN is the best"

# ---- models with a weight of some value
"$czero" train --config ds.json --set optimizer.params.lr=0.01 --model gpt2-tiny --tokenizer bytes --data text.txt --seq-len 16 --steps 1 \
  --export lm --quiet >out 2>err
"$czero" "${cls[@]}" --set optimizer.params.lr=0.01 --steps 1 --export cls --quiet >out 2>err
"$czero" "${tokens[@]}" --set optimizer.params.lr=0.01 --steps 1 --export tokens --quiet >out 2>err
put() { # FROM TO VALUE [TENSOR]: the first element of the last tensor, or of one
  rm -rf "$2"
  cp -r "$1" "$2"
  python3 - "$2/model.safetensors" "$3" "${4:-}" <<'PY'
import json, struct, sys
path, value, name = sys.argv[1:]
data = bytearray(open(path, "rb").read())
n = struct.unpack("<Q", data[:8])[0]
header = {k: v for k, v in json.loads(data[8:8 + n]).items() if k != "__metadata__"}
at = 8 + n + header[name or max(header, key=lambda k: header[k]["data_offsets"][0])]["data_offsets"][0]
data[at:at + 4] = struct.pack("<f", float(value))
open(path, "wb").write(data)
PY
}
"$czero" "${lm[@]}" --model lm --lora --set optimizer.params.lr=0.01 --steps 1 --export lora --quiet >out 2>err || fail "an adapter"
for value in nan inf; do
  put lm lm-$value $value transformer.ln_f.weight
  put cls cls-$value $value classifier.weight
  put tokens tokens-$value $value classifier.weight
  refused 4 'rows 1 to' eval --model lm-$value --data text.txt --seq-len 16
  refused 4 'the logit' generate --model lm-$value --prompt a
  refused 4 'text ' predict --model cls-$value --data labels.csv
  refused 4 'text 1: the model gives the logit' predict --model cls-$value --text "good day"
  refused 4 'text ' eval --model cls-$value --data labels.csv
  refused 4 'text ' predict --model tokens-$value --data words.conll
  refused 4 'text ' eval --model tokens-$value --data words.conll
  refused 1 'ended with a loss of nan; 1 of its 1 steps' "${lm[@]}" --model lm-$value --steps 1 --export never --save run-$value
  refused 1 "transformer.ln_f.weight: element 0 is $value" export run-$value never
  refused 1 "element 0 is $value" export lora --merge --force --model lm-$value never
  [ ! -e never/model.safetensors ] || fail "weights of $value are exported"
done
put lm lm-large 65519 transformer.ln_f.weight
still=("${lm[@]}" --set optimizer.params.lr=0 --steps 1)
"$czero" "${still[@]}" --model lm-large --save large --export half --export-dtype fp16 >out 2>err || fail "65519 rounds to fp16's largest"
"$czero" export large half2 --dtype fp16 >out 2>err || fail "65519 in a checkpoint"
put lm lm-large 65520 transformer.ln_f.weight
refused 2 'transformer.ln_f.weight: element 0 is 65520, beyond 65504' "${still[@]}" --model lm-large --save larger --export never --export-dtype fp16
refused 2 'transformer.ln_f.weight: element 0 is 65520, beyond 65504, the largest of fp16: export bf16 or fp32' export larger never --dtype fp16
"$build/zero_to_fp32" larger wide --safe_serialization >out 2>err && ! grep -q "hold nan" err || fail "a finite checkpoint is warned about"
"$build/zero_to_fp32" run-nan copied --safe_serialization >out 2>err || fail "zero_to_fp32 does not copy what a checkpoint holds"
grep -qE 'warning: [0-9]+ of 28 tensors hold nan or inf, as written; the first is transformer\.' err || fail "zero_to_fp32 copies NaN in silence"
put lm lm-huge 3.397e38 transformer.ln_f.weight
"$czero" "${still[@]}" --model lm-huge --save huge >out 2>err && fail "a loss of nan"
refused 2 'element 0 is 3.397e+38, beyond 3.38953e+38, the largest of bf16: export fp32' export huge never --dtype bf16
put lm lm-edge 3.395e38 transformer.ln_f.weight
"$czero" "${still[@]}" --model lm-edge --save edge >out 2>err && fail "a loss of nan"
"$czero" export edge edge-bf16 --dtype bf16 >out 2>err || fail "3.395e38 rounds to the largest of bf16"
for type in bf16 fp32; do "$czero" export larger $type --dtype $type >out 2>err || fail "65520 as $type"; done
"$czero" "${still[@]}" --model lm-large --export b --export-dtype bf16 >out 2>err || fail "65520 as bf16"

# ---- most steps skipped, but not the last
sed 's/1e30/0.01/; s/"gradient_clipping"/"fp16": {"enabled": true, "initial_scale_power": 30, "loss_scale_window": 1000, "hysteresis": 1}, &/' ds.json >fp16.json
"$czero" "${lm[@]}" --config fp16.json --steps 20 >out 2>err || fail "fp16"
grep -qE 'warning: 1[0-9] of 20 steps were skipped, .*: the run made [0-9] updates' err || fail "skipped steps are not told"
"$czero" "${lm[@]}" --config fp16.json --set fp16.initial_scale_power=8 --steps 4 >out 2>err || fail "fp16"
! grep -q 'steps were skipped' err || fail "no step was skipped"
