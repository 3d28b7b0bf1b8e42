#!/usr/bin/env bash
# Claims: czero embed writes the hidden states that transformers computes, pooled as asked, in the order of the texts,
# whatever the batch; a sentence-transformers folder is obeyed, or what it asks for is named; files of another kind stay.
. "$(dirname "$0")/../../support/command.sh"
fixture=$build/fixtures/embed
cp -rL "$fixture" model # the fixture is a link

cat >check.py <<'PY'
import json, math, struct, sys

def wanted(path):  # pool, text or pair, 16 numbers
    return [[float(x) for x in line.split()[2:]] for line in open(path)]

def lines(path):
    return [json.loads(line)["embedding"] for line in open(path)]

def array(path):  # values and shape
    raw = open(path, "rb").read()
    n = 10 + struct.unpack_from("<H", raw, 8)[0]
    header = eval(raw[10:n])
    code = {"<f4": "f", "<i8": "q"}[header["descr"]]
    assert raw[:6] == b"\x93NUMPY" and n % 64 == 0 and not header["fortran_order"], raw[:n]
    values = struct.unpack(f"<{(len(raw) - n) // struct.calcsize(code)}{code}", raw[n:])
    assert len(values) == math.prod(header["shape"]), header
    return values, header["shape"]

def rows(path):
    values, shape = array(path)
    assert len(shape) == 2, shape
    return [values[i * shape[1]:(i + 1) * shape[1]] for i in range(shape[0])]

def near(a, b):
    assert len(a) == len(b) == 6, (len(a), len(b))
    for x, y in zip(a, b):
        assert len(x) == len(y) == 16 and all(abs(p - q) <= 1e-5 for p, q in zip(x, y)), (x, y)

exec(sys.argv[1])
PY
check() { python3 check.py "$1" 2>check.err || { cp check.err err; fail "$1"; }; }
near() { check "near(wanted('$1'), lines('$2'))"; } # WANT.txt GOT.jsonl
embed() { "$czero" embed --model model "$@" >out 2>err || fail "embed $*"; }

cut -d'"' -f4 model/texts.jsonl >texts.txt
for pool in cls mean last; do
  grep "^$pool text" model/expected.txt >want.txt
  for batch in 1 4 32; do
    embed --data texts.txt --pool $pool --batch $batch --json
    near want.txt out
    [ ! -s err ] || fail "words on stderr"
  done
  grep "^$pool pair" model/expected.txt >want.txt
  embed --data model/texts.jsonl --pool $pool --json -o x.jsonl
  near want.txt x.jsonl
  [ ! -s err ] || fail "words on stderr"
done

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
check "near(rows('a.npy'), lines('out'))"
embed --data texts.txt -o a.npy # its own file may be replaced

# Unit length.
embed --data texts.txt --normalize --json
check "assert [round(sum(x * x for x in row), 4) for row in lines('out')] == [1] * 6"

# All states, with the numbers of tokens.
embed --data texts.txt --pool none -o all.npy
grep -aqF "'shape': (6, 14, 16)" all.npy || fail "shape of all states: $(head -c 128 all.npy | tr -d '\0')"
embed --data texts.txt --pool none --json
check "all_values, shape = array('all.npy')
lengths, n_rows = array('all.lengths.npy')
assert n_rows == (6,) and max(lengths) == shape[1], (lengths, shape)
for i, tokens in enumerate(lines('out')):  # a vector per token, zeros behind the last one
    assert len(tokens) == lengths[i], (i, len(tokens))
    row = all_values[i * 14 * 16:(i + 1) * 14 * 16]
    flat = [x for token in tokens for x in token]
    assert len(flat) == 16 * len(tokens) and all(abs(p - q) <= 1e-5 for p, q in zip(row, flat)), i
    assert not any(row[len(flat):]), i"

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
! grep -q "does not use" err || fail "a harmless setting is named"
echo '{"default_prompt_name": "query", "truncate_dim": 8}' >model/config_sentence_transformers.json
sed -i 's/{/{"weights": [1, 2], /' model/1_Pooling/config.json
embed --data texts.txt --json
grep -q 'config_sentence_transformers.json: settings that czero does not use: truncate_dim' err || fail "truncate_dim is not named"
grep -q '1_Pooling/config.json: settings that czero does not use: weights' err || fail "a setting of the pooling is not named"
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
python3 - <<'PY'
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
