#!/usr/bin/env bash
# Claim: every command that reads text refuses bytes that are not UTF-8 with file, line and the encoding that they look
# like; with --encoding it reads them, and gives what the same text in UTF-8 gives; marks of byte order are no text.
. "$(dirname "$0")/../../support/command.sh"

python3 - <<'PY'
import json
good, bad = "好天气真不错", "坏天气太糟了"
texts = [(good + good[i % 6] * (i % 3), "正") if i % 2 else (bad + bad[i % 6] * (i % 4), "负") for i in range(24)]
files = {
    "t.csv": "text,label\n" + "".join(f"{t},{l}\n" for t, l in texts),
    "t.tsv": "text\tlabel\n" + "".join(f"{t}\t{l}\n" for t, l in texts),
    "t.jsonl": "".join(json.dumps(dict(text=t, label=l), ensure_ascii=False) + "\n" for t, l in texts),
    "w.conll": "\n".join("".join(f"{c} {'B-甲' if c in '好坏' else 'O'}\n" for c in t) for t, _ in texts),
    "p.txt": "".join(t + "\n" for t, _ in texts),
    "chat.jsonl": "".join(json.dumps(dict(prompt=t, completion=l), ensure_ascii=False) + "\n" for t, l in texts),
}
for name, text in files.items():
    open("utf8-" + name, "w").write(text)
    open("bom-" + name, "wb").write(text.encode("utf-8-sig"))
    open("gbk-" + name, "wb").write(text.encode("gbk"))
    open("wide-" + name, "wb").write(text.encode("utf-16"))
PY
echo '{"train_micro_batch_size_per_gpu": 4, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}}' >ds.json
"$czero" vocab --data utf8-p.txt --type char --size 60 --min-count 1 -o vocab >out 2>err || fail "no vocabulary"

run() { # KIND MODEL ENCODING FILE MORE…
  local task=$1 model=$2 file=$3
  shift 3
  rm -rf export
  "$czero" train --config ds.json --model "$model" --init random --task "$task" --tokenizer vocab --data "$file" --steps 2 --seq-len 12 \
    --quiet --export export "$@" >out 2>err
}
# TASK MODEL NAME LINE: of the first byte that is not ASCII
while read -r task model name line; do
  got=0
  run "$task" "$model" "gbk-$name" || got=$?
  [ $got = 4 ] || fail "$task, gbk-$name: exit code $got"
  grep -q "gbk-$name:$line: byte 0x[0-9a-f]* at offset [0-9]* is not UTF-8; the text looks like gb18030: use --encoding gb18030" err ||
    fail "$task, gbk-$name: another message"
  got=0
  run "$task" "$model" "wide-$name" || got=$?
  [ $got != 0 ] && grep -q "wide-$name.*utf-16.*use --encoding utf-16" err || fail "$task, wide-$name: taken, or another message"
  run "$task" "$model" "utf8-$name" || fail "$task, utf8-$name"
  mv export/model.safetensors want
  run "$task" "$model" "bom-$name" && cmp want export/model.safetensors || fail "$task, bom-$name: other weights"
  run "$task" "$model" "gbk-$name" --encoding gbk && cmp want export/model.safetensors || fail "$task, gbk-$name: other weights"
  run "$task" "$model" "wide-$name" --encoding utf-16 && cmp want export/model.safetensors || fail "$task, wide-$name: other weights"
done <<'LIST'
classification bert-tiny t.csv 2
classification bert-tiny t.tsv 2
classification bert-tiny t.jsonl 1
token-classification bert-tiny w.conll 1
causal-lm gpt2-tiny p.txt 1
causal-lm gpt2-tiny t.jsonl 1
masked-lm bert-tiny p.txt 1
sft gpt2-tiny chat.jsonl 1
LIST
# bytes are read where they are
refused 4 "gbk-p.txt:1: byte 0x" train --config ds.json --model gpt2-tiny --tokenizer bytes --data gbk-p.txt --steps 1 --seq-len 8
for f in utf8-p.txt "bom-p.txt" "gbk-p.txt --encoding gbk"; do
  "$czero" train --config ds.json --model gpt2-tiny --tokenizer bytes --data $f --steps 1 --seq-len 8 --quiet --export bytes-model >out 2>err || fail "bytes: $f"
  [ ! -e want-bytes ] || cmp want-bytes bytes-model/model.safetensors || fail "bytes: $f: other weights"
  mv bytes-model/model.safetensors want-bytes
  rm -r bytes-model
done
"$czero" train --config ds.json --model gpt2-tiny --data u8:gbk-p.txt --steps 1 --seq-len 8 --quiet >out 2>err || fail "u8: takes any bytes"

# ---- other commands: the same output for both files -------------------------------------------
"$czero" train --config ds.json --model bert-tiny --task classification --tokenizer vocab --data utf8-t.csv --epochs 1 --quiet --export cls >out 2>err || fail "cls"
"$czero" train --config ds.json --model bert-tiny --task token-classification --tokenizer vocab --data utf8-w.conll --epochs 1 --quiet --export ner >out 2>err || fail "ner"
"$czero" train --config ds.json --model gpt2-tiny --tokenizer vocab --data utf8-p.txt --steps 1 --seq-len 8 --quiet --export lm >out 2>err || fail "lm"
while read -r option name words; do
  [ "$option" != -- ] || option=
  # shellcheck disable=SC2086
  { refused 4 "gbk-$name:" $words $option "gbk-$name"
    "$czero" $words $option "utf8-$name" >want 2>err || fail "$words utf8-$name"
    "$czero" $words $option "gbk-$name" --encoding gb18030 >out 2>err || fail "$words gbk-$name"
    diff <(sed 's/utf8-/gbk-/' want) out || fail "$words: another result"; }
done <<'LIST'
--data t.csv eval --model cls
--data w.conll eval --model ner
--data p.txt eval --model lm --seq-len 8
--data chat.jsonl eval --model lm --task sft --seq-len 12
--data t.tsv predict --model cls
--data p.txt predict --model cls
--data w.conll predict --model ner
--prompts p.txt generate --model lm --max-new-tokens 2
-- chat.jsonl data show --tokenizer vocab
LIST
refused 4 "gbk-t.csv:2: byte" vocab --data gbk-t.csv --size 50 -o v2
"$czero" vocab --data gbk-t.csv --encoding gbk --size 50 -o v2 >out 2>err && "$czero" vocab --data utf8-t.csv --size 50 -o v3 >out 2>err || fail "vocab"
cmp v2/vocab.txt v3/vocab.txt || fail "vocab: another result"
got=0
"$czero" predict --model cls --data - <gbk-p.txt >out 2>err || got=$?
[ $got = 4 ] && grep -q "standard input:1: byte 0x.*gb18030" err || fail "standard input is taken"
"$czero" predict --model cls --data - --encoding gbk <gbk-p.txt >out 2>err || fail "standard input with an encoding"
gbk=$(printf '\xba\xc3\xcc\xec')
refused 2 "--text: byte 0xba at offset 0 is not UTF-8; the text looks like gb18030" predict --model cls --text "$gbk"
refused 2 "--pair: byte 0xba" predict --model cls --text a --pair "$gbk"
refused 2 "--prompt: byte 0xba" generate --model lm --prompt "$gbk"
refused 2 'encoding "klingon": this host'"'"'s iconv does not have it' eval --model cls --data utf8-t.csv --encoding klingon
refused 4 "is not utf-16le; choose another --encoding" eval --model cls --data utf8-t.csv --encoding utf-16le
refused 2 "byte 0xff is not UTF-8 text; the file looks like utf-16: save it as UTF-8" config check <(iconv -f utf-8 -t utf-16 ds.json)
