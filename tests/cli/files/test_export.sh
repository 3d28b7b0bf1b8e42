#!/usr/bin/env bash
# Claim: `czero export` makes a Hugging Face folder of a checkpoint that czero loads again, with the
# tensors of zero_to_fp32 and a config.json that names their dtype; a model that is not the
# checkpoint's is refused before anything is written.
set -uo pipefail
cd "$(dirname "$0")/../../.."
czero=$1/czero
fixtures=$1/fixtures
work=$(mktemp -d /tmp/czero-export-XXXXXX)
trap 'rm -rf "$work"' EXIT
failed=0
complain() { echo "$*" >&2; failed=1; }
ckpt=$fixtures/runs/s3-bf16-adamw/ckpt

"$czero" export "$ckpt" "$work/hf" --model "$fixtures/models/gpt2-tiny" --verify >"$work/out" || complain "exit $?"
grep -q "^wrote $work/hf: config.json and 1 file of weights, 28 tensors.*verified" "$work/out" || complain "$(cat "$work/out")"
[ "$(find "$work/hf" -type f | wc -l)" = 2 ] || complain "files: $(ls "$work/hf")"
grep -q '"dtype": "float32"\|"torch_dtype": "float32"' "$work/hf/config.json" || complain "$(cat "$work/hf/config.json")"
"$1/zero_to_fp32" "$ckpt" "$work/st" --safe_serialization --quiet
cmp "$work/hf/model.safetensors" "$work/st/model.safetensors" || complain "the tensors differ"
"$czero" generate --model "$work/hf" --prompt "To be" --max-new-tokens 5 >"$work/out" 2>"$work/err" || complain "generate: $(cat "$work/err")"

"$czero" export "$ckpt" "$work/small" --model "$fixtures/models/gpt2-tiny" --dtype bf16 --max-shard-size 100KB \
  --quiet >"$work/out" || complain "bf16: exit $?"
[ -s "$work/out" ] && complain "--quiet prints"
grep -q 'bfloat16' "$work/small/config.json" || complain "the config names no bfloat16"
[ -e "$work/small/model.safetensors.index.json" ] || complain "no index"
"$czero" generate --model "$work/small" --prompt "To be" --max-new-tokens 5 >/dev/null 2>"$work/err" || complain "shards: $(cat "$work/err")"

# The model that czero train --save wrote down has no weights, and needs none: nothing to be said
mkdir "$work/saved" && cp -r "$ckpt"/* "$work/saved" && mkdir "$work/saved/model"
cp "$fixtures/models/gpt2-tiny/config.json" "$work/saved/model"
"$czero" export "$work/saved" "$work/own" >"$work/out" 2>"$work/err" || complain "own model: $(cat "$work/err")"
[ -s "$work/err" ] && complain "an export says: $(cat "$work/err")"
cmp "$work/own/model.safetensors" "$work/st/model.safetensors" || complain "its own model: the tensors differ"

# Nothing tells whose machine the model came from, or asks for code that is not there
mkdir "$work/traced"
sed -e '/_name_or_path/d' -e '1s|{|{"_name_or_path": "/home/me/gpt2", "auto_map": {"AutoModel": "x.Y"}, "text_config": {"cache": "/data/me", "kept": 1.50},|' \
  "$fixtures/models/gpt2-tiny/config.json" >"$work/traced/config.json"
"$czero" export "$ckpt" "$work/bare" --model "$work/traced" --quiet || complain "traced: exit $?"
grep -qE '_name_or_path|auto_map|/home|/data|"cache"' "$work/bare/config.json" && complain "traces: $(cat "$work/bare/config.json")"
grep -q '"kept": 1.50' "$work/bare/config.json" || complain "lost: $(cat "$work/bare/config.json")"
python3 - "$work/traced/config.json" "$work/bare/config.json" <<'PY' || complain "the configs differ in more than that"
import json, sys
before, after = (json.load(open(path)) for path in sys.argv[1:3])
for config in before, after:
    for key in "_name_or_path", "auto_map", "dtype", "torch_dtype":
        config.pop(key, None)
before["text_config"].pop("cache")
assert before == after and list(before) == list(after), (before, after)
PY

# An untied masked LM of transformers has two biases of which one is not used: another program saves both
mkdir "$work/bert"
echo '{"model_type": "bert", "architectures": ["BertForMaskedLM"], "vocab_size": 8, "hidden_size": 2, "num_hidden_layers": 1,
  "num_attention_heads": 1, "intermediate_size": 3, "max_position_embeddings": 8, "tie_word_embeddings": false}' >"$work/bert/config.json"
printf '%s\n' '[PAD]' '[UNK]' '[CLS]' '[SEP]' '[MASK]' the of a >"$work/bert/vocab.txt"
"$czero" train --config configs/quickstart.json --model "$work/bert" --init random --task masked-lm --data README.md \
  --seq-len 8 --steps 1 --export "$work/bert/own" --quiet || complain "an untied masked LM: exit $?"
(cd "$work" && PYTHONPATH=$OLDPWD/tests/cli/files python3 - <<'PY') || complain "no checkpoint of an untied masked LM"
import json, os, struct
from repeated_elements import pairs, tensor, text, write
with open("bert/own/model.safetensors", "rb") as f:
    header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
shapes = {name: header[name]["shape"] for name in header if name != "__metadata__"}
assert "cls.predictions.bias" in shapes and "cls.predictions.decoder.bias" in shapes
os.makedirs("both/t")
open("both/latest", "w").write("t")
strides = lambda shape: (shape[-1], 1)[-len(shape):]  # of a matrix or a vector
numel = {name: shape[0] * (shape + [1])[1] for name, shape in shapes.items()}
write("both/t/mp_rank_00_model_states.pt", pairs([
    ("module", pairs([(name, tensor(name, numel[name], shape, strides(shape))) for name, shape in shapes.items()])),
    ("buffer_names", b"]"), ("shared_params", b"}"), ("ds_version", text("0.19.8")), ("dp_world_size", b"K\1"),
    ("mp_world_size", b"K\1"), ("global_steps", b"K\1")]), numel)
PY
"$czero" export "$work/both" "$work/masked" --model "$work/bert" --quiet || complain "two biases: exit $?"

refuse() { # CODE PATTERN -- arguments
  local code=$1 pattern=$2
  shift 3
  "$czero" export "$@" >"$work/out" 2>"$work/err"
  local got=$?
  [ $got = "$code" ] || complain "exit $got instead of $code: export $*"
  grep -q -- "$pattern" "$work/err" || complain "no \"$pattern\" in: $(cat "$work/err")"
  [ ! -e "$work/refused" ] || complain "export $*: a folder was made"
}
refuse 2 "CHECKPOINT_DIR and OUT_DIR are missing" --
refuse 2 "--model is missing" -- "$ckpt" "$work/refused"
refuse 2 "transformer.wte.weight of gpt2 is (50257, 768), in the checkpoint (256, 64)" -- "$ckpt" "$work/refused" --model gpt2
refuse 2 "nonesuch" -- "$ckpt" "$work/refused" --model nonesuch
refuse 2 "no such folder" -- "$work/nothing" "$work/refused" --model gpt2-tiny
refuse 2 "no such folder" -- "$work/nothing" "$work/refused"
refuse 2 "--max-shard-size" -- "$ckpt" "$work/refused" --model gpt2-tiny --max-shard-size huge
sed 's/"n_layer": 2/"n_layer": 1/' "$fixtures/models/gpt2-tiny/config.json" >"$work/config.json"
refuse 2 "has transformer.h.1.*does not" -- "$ckpt" "$work/refused" --model "$work"
sed 's/"n_positions": 64/"n_positions": 32/' "$fixtures/models/gpt2-tiny/config.json" >"$work/config.json"
refuse 2 "transformer.wpe.weight of .* is (32, 64), in the checkpoint (64, 64)" -- "$ckpt" "$work/refused" --model "$work"
sed 's/"tie_word_embeddings": true/"tie_word_embeddings": false/' "$fixtures/models/gpt2-tiny/config.json" >"$work/config.json"
if grep -q '"tie_word_embeddings": false' "$work/config.json"; then
  refuse 2 "ties it to transformer.wte.weight\|tie_word_embeddings" -- "$ckpt" "$work/refused" --model "$work"
fi
exit $failed
