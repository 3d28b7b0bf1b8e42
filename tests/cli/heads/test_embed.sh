#!/usr/bin/env bash
# Claims: czero embed writes the hidden states that transformers computes, pooled as asked, in the order of the texts,
# whatever the batch; a sentence-transformers folder is obeyed, or what it asks for is named; files of another kind stay.
. "$(dirname "$0")/../../support/command.sh"
fixture=$build/fixtures/embed
cp -rL "$fixture" model # the fixture is a link

# Columns: pool, text or pair, 16 numbers. near WANT.txt GOT.jsonl: every number within 1e-5.
near() {
  paste -d' ' "$1" <(tr -d '[]{}":,a-z' <"$2") | awk '{
    for (i = 1; i <= 16; i++) { d = $(2 + i) - $(18 + i); if (d > 1e-5 || d < -1e-5) exit 1 }
    if (NF != 34) exit 1 } END { if (NR != 6) exit 1 }' || fail "$1 and $2 differ"
}
embed() { "$czero" embed --model model "$@" >out 2>err || fail "embed $*"; }

cut -d'"' -f4 model/texts.jsonl >texts.txt
for pool in cls mean last; do
  grep "^$pool text" model/expected.txt >want.txt
  for batch in 1 4 32; do
    embed --data texts.txt --pool $pool --batch $batch --json
    near want.txt out
  done
  grep "^$pool pair" model/expected.txt >want.txt
  embed --data model/texts.jsonl --pool $pool --json -o x.jsonl
  near want.txt x.jsonl
done
[ ! -s err ] || fail "words on stderr"

# --text is a row of its own; mean is the default.
embed --text "$(head -1 texts.txt)"
head -1 out >first
embed --data texts.txt --json
[ "$(head -1 out)" = "$(cat first)" ] || fail "--text differs"

# The array: header, order, whole after -o; one of another batch size has the same numbers.
embed --data texts.txt --batch 2 -o a.npy
[ "$(head -c 6 a.npy | tail -c 5)" = NUMPY ] || fail "no .npy"
grep -aqF "{'descr': '<f4', 'fortran_order': False, 'shape': (6, 16), }" a.npy || fail "header"
[ "$(stat -c %s a.npy)" = $((128 + 6 * 16 * 4)) ] || fail "size"
embed --data texts.txt --json
od -An -v -tf4 -w64 -j128 a.npy >got
paste -d' ' <(tr -d '[]{}":,a-z' <out) got | awk '{ for (i = 1; i <= 16; i++) { d = $i - $(16 + i); if (d > 1e-5 || d < -1e-5) exit 1 } }
  END { if (NR != 6) exit 1 }' || fail "array and lines differ"
embed --data texts.txt -o a.npy # its own file may be replaced

# Unit length.
embed --data texts.txt --normalize --json
tr -d '[]{}":,a-z' <out | awk '{ s = 0; for (i = 1; i <= NF; i++) s += $i * $i; if (s < 0.9999 || s > 1.0001) exit 1 }' || fail "length"

# All states, with the numbers of tokens.
embed --data texts.txt --pool none -o all.npy
grep -aqF "'shape': (6, 14, 16)" all.npy || fail "shape of all states: $(head -c 128 all.npy | tr -d '\0')"
od -An -v -td8 -w8 -j128 all.lengths.npy | tr -d ' ' >lengths
embed --data texts.txt --pool none --json
for row in 1 2 3 4 5 6; do # as many vectors of 16 numbers as tokens
  n=$(sed -n "${row}p" out | tr ',' '\n' | wc -l)
  [ "$n" = $((16 * $(sed -n "${row}p" lengths))) ] || fail "length of row $row"
done

# Longer texts are cut, with a warning; lines of CoNLL are words; columns have names.
embed --data texts.txt --seq-len 4 --pool cls --json
grep -q "texts were truncated to 4 tokens" err || fail "no word of cut texts"
printf 'good O\nday O\n\nno O\n' >words.conll
embed --data words.conll --json
[ "$(wc -l <out)" = 2 ] || fail "conll"
mv out want
for name in words.CoNLL words.conll.gz words.iob2; do
  case $name in *.gz) gzip -k words.conll ;; *) cp words.conll $name ;; esac
  embed --data $name --json
  cmp -s want out || fail "$name is not read as words"
done
refused 2 'files of words, such as .conll, and files of texts' embed --model model --data words.conll texts.txt --json
printf 'id,review,label\n1,a good day,x\n2,no,y\n' >t.csv
embed --data t.csv --text-column review --json
[ "$(wc -l <out)" = 2 ] || fail "csv"

# sentence-transformers.
st() { # POOLING_KEY MODULES…
  local key=$1 at=0 all="" module
  shift
  mkdir -p model/1_Pooling
  for module in "$@"; do
    all+="${all:+, }{\"idx\": $at, \"name\": \"$at\", \"path\": \"$([ $at = 0 ] || echo ${at}_$module)\", \"type\": \"sentence_transformers.models.$module\"}"
    at=$((at + 1))
  done
  echo "[$all]" >model/modules.json
  echo "{\"word_embedding_dimension\": 16, \"pooling_mode_cls_token\": false, \"pooling_mode_$key\": true}" >model/1_Pooling/config.json
}
for pool in cls mean last; do
  case $pool in cls) key=cls_token ;; mean) key=mean_tokens ;; last) key=lasttoken ;; esac
  st $key Transformer Pooling
  [ $pool = cls ] && sed -i 's/"pooling_mode_cls_token": false, //' model/1_Pooling/config.json
  grep "^$pool text" model/expected.txt >want.txt
  embed --data texts.txt --json
  near want.txt out
  st $key Transformer Pooling Normalize
  [ $pool = cls ] && sed -i 's/"pooling_mode_cls_token": false, //' model/1_Pooling/config.json
  embed --data texts.txt --json
  cp out normed
  rm model/modules.json
  embed --data texts.txt --pool $pool --normalize --json
  cmp -s out normed || fail "Normalize of $pool"
done
st mean_tokens Transformer Pooling Dense
refused 2 'the module 2_Dense (Dense)' embed --model model --text a --json
st max_tokens Transformer Pooling
refused 2 'pooling by pooling_mode_max_tokens' embed --model model --text a --json
embed --text a --pool cls
grep -q "its modules pool in another way than --pool cls" err || fail "no word of the other pooling"
st mean_tokens Transformer Pooling
echo '{"default_prompt_name": "query", "prompts": {"query": "query: "}}' >model/config_sentence_transformers.json
echo '{"max_seq_length": 4, "do_lower_case": false}' >model/sentence_bert_config.json
embed --data texts.txt --json
grep -q 'default prompt "query" is not put in front' err || fail "no word of the prompt"
grep -q "truncated to 4 tokens" err || fail "max_seq_length"
echo '{"max_seq_length": 4, "do_lower_case": true}' >model/sentence_bert_config.json
refused 2 'do_lower_case' embed --model model --text a --json
echo '[{"type": "sentence_transformers.models.Transformer", "path": "../x"}]' >model/modules.json
refused 4 '..' embed --model model --text a --json
echo '{}' >model/modules.json
refused 2 'modules.json: a list is needed' embed --model model --text a --json
echo '[true]' >model/modules.json
refused 4 'modules.json:1:2: [0]: "type" is missing' embed --model model --text a --json
rm -f model/modules.json model/*sentence*

# What is refused.
echo notes >notes.md
refused 4 'notes.md exists and is not an array' embed --model model --data texts.txt -o notes.md
refused 4 'notes.md exists and is not lines of embeddings' embed --model model --data texts.txt --json -o notes.md
cp notes.md y.lengths.npy
refused 4 'y.lengths.npy exists and is not an array' embed --model model --data texts.txt --pool none -o y.npy
refused 2 'is an input of this command' embed --model model --data texts.txt -o texts.txt
[ "$(cat notes.md)" = notes ] && [ "$(cat y.lengths.npy)" = notes ] && [ ! -e y.npy ] || fail "a file is lost"
refused 2 '--text or --data is missing' embed --model model
refused 2 '--data needs -o FILE.npy' embed --model model --data texts.txt
refused 2 '--pair needs --text' embed --model model --data texts.txt --pair x --json
refused 2 '--encoding needs --data' embed --model model --text a --encoding gb18030
refused 1 'nowhere/x.npy' embed --model model --data texts.txt -o nowhere/x.npy
refused 2 'has no weights' embed --model bert-tiny --text a --tokenizer bytes
cp -r model broken
python3 - <<'PY' 2>/dev/null || perl -e 'open F,"+<broken/model.safetensors"; binmode F; read F,$h,8; $n=unpack("Q<",$h); seek F,8+$n,0; print F "\x00\x00\xc0\x7f" x ((-s "broken/model.safetensors")/4 - (8+$n)/4)'
import struct
raw = bytearray(open("broken/model.safetensors", "rb").read())
n = 8 + struct.unpack("<Q", raw[:8])[0]
raw[n:] = b"\0\0\xc0\x7f" * ((len(raw) - n) // 4)
open("broken/model.safetensors", "wb").write(raw)
PY
echo '{"embedding": [0]}' >old.jsonl && cp old.jsonl kept
refused 4 'are not finite' embed --model broken --data texts.txt --json -o old.jsonl
cmp -s old.jsonl kept || fail "old lines are lost"
refused 4 'are not finite; its weights may be damaged' embed --model broken --data texts.txt -o b.npy
[ ! -e b.npy ] || fail "an array of nan"
