#!/usr/bin/env bash
# Claim: generation_config.json, the chat template and SentencePiece's model of a model's folder are in what
# czero train --export, --save and czero export write of it, without paths, and only if they are what
# they seem; --export-dtype chooses the type of the weights, by default that of the model's files; a run
# whose --metrics or --curve cannot be written any more fails with the name of the file.
. "$(dirname "$0")/../../support/command.sh"

dtypes() { # of a folder's weights, and what its config says
  python3 - "$1" <<'PY'
import json, struct, sys
with open(sys.argv[1] + "/model.safetensors", "rb") as f:
    header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
config = json.load(open(sys.argv[1] + "/config.json"))
print(*sorted({v["dtype"] for k, v in header.items() if k != "__metadata__"}), config.get("dtype") or config.get("torch_dtype"))
PY
}
head -c 20000 "$source_dir/examples/data/fortunes.txt" >text.txt
cat >ds.json <<'JSON'
{"train_micro_batch_size_per_gpu": 4, "optimizer": {"type": "AdamW", "params": {"lr": 0.003}}}
JSON
"$czero" vocab --data text.txt --kind wordpiece --size 300 -o vocab >out 2>err || fail "no vocabulary"
train=(train --config ds.json --task masked-lm --seq-len 32 --steps 2 --quiet --data text.txt)
"$czero" "${train[@]}" --model bert-tiny --tokenizer vocab --export base >out 2>err || fail "no base model"
[ "$(dtypes base)" = "F32 float32" ] || fail "a preset: $(dtypes base)"
cat >base/generation_config.json <<'JSON'
{"eos_token_id": [1, 2], "temperature": 0.6, "_from_model_config": true, "_name_or_path": "/home/me/base"}
JSON
printf '{%% for m in messages %%}{{ m.content }}\n{%% endfor %%}' >base/chat_template.jinja
# pieces "<unk>" (score 0, kind 2) and "ab" (score -1), a message about the training
printf '\n\016\n\005<unk>\025\0\0\0\0\030\002\n\011\n\002ab\025\0\0\200\277\022\002\010\001' >base/tokenizer.model

kept() {
  cmp base/chat_template.jinja "$1/chat_template.jinja" || fail "$1: another chat template"
  cmp base/tokenizer.model "$1/tokenizer.model" || fail "$1: another tokenizer.model"
  python3 - "$1" <<'PY' || fail "$1: another generation_config.json"
import json, sys
assert json.load(open(sys.argv[1] + "/generation_config.json")) == {"eos_token_id": [1, 2], "temperature": 0.6, "_from_model_config": True}
PY
}
"$czero" "${train[@]}" --model base --export-dtype bf16 --export half --save runs >out 2>err || fail "training failed"
[ "$(dtypes half)" = "BF16 bfloat16" ] || fail "bf16: $(dtypes half)"
kept half
kept runs/model
"$czero" export runs written --dtype fp16 >out 2>err || fail "export failed"
[ "$(dtypes written)" = "F16 float16" ] || fail "czero export: $(dtypes written)"
kept written
"$czero" "${train[@]}" --model half --export again >out 2>err || fail "training from bf16 failed"
[ "$(dtypes again)" = "BF16 bfloat16" ] || fail "the model's own type: $(dtypes again)"
kept again
"$czero" "${train[@]}" --model half --export whole --export-dtype fp32 >out 2>err || fail "training to fp32 failed"
[ "$(dtypes whole)" = "F32 float32" ] || fail "fp32: $(dtypes whole)"

# what is something else stays behind, with a warning
printf '\xff\xfe' >base/chat_template.jinja
echo "# not SentencePiece" >base/tokenizer.model
echo "[1]" >base/generation_config.json
"$czero" "${train[@]}" --model base --export clean >out 2>err || fail "odd files stop a run"
for name in chat_template.jinja tokenizer.model generation_config.json; do
  [ ! -e "clean/$name" ] || fail "$name was exported"
  grep -q "$name" err || fail "no warning about $name"
done
rm base/generation_config.json
ln -s /etc/hostname base/generation_config.json
code=0
"$czero" "${train[@]}" --model base >out 2>err || code=$?
[ $code = 4 ] || fail "a link to elsewhere: exit code $code"

touch file
code=0
"$czero" "${train[@]}" --model bert-tiny --tokenizer vocab --export file >out 2>err || code=$?
[ $code = 2 ] && grep -q "file: is a file; a folder is needed" err || fail "--export FILE: exit code $code"
"$czero" "${train[@]}" --model bert-tiny --tokenizer vocab --export new/folder/x >out 2>err || fail "--export into folders that are not there"
[ -e new/folder/x/config.json ] || fail "--export made no folders"
for option in metrics curve; do
  code=0
  (ulimit -f 1 && exec "$czero" "${train[@]}" --steps 60 --model bert-tiny --tokenizer vocab "--$option" "$option.csv") >out 2>err || code=$?
  [ $code = 1 ] && grep -q -- "--$option: cannot write $option.csv" err || fail "--$option on a full disk: exit code $code"
done
