#!/usr/bin/env bash
# Claim: the tools run models on a CUDA device (real, or the simulated one) as on the CPU: verify
# agrees with PyTorch, generate writes the same text, train learns the same losses, eval and predict
# of what was trained there say the same, packed chats and the accuracy of tokens included; DoRA trains one adapter at all stages; the example with a layer of its own works there, too.
set -uo pipefail
cd "$(dirname "$0")/../.."
build=$1
czero=$build/czero
models=$build/fixtures/models
work=$(mktemp -d /tmp/czero-tools-cuda-XXXXXX)
trap 'rm -rf "$work"' EXIT
failed=0
complain() { echo "$*" >&2; failed=1; }

for model in gpt2 llama-variant bert-variant-a distilbert-variant-a; do
  "$czero" verify "$models/$model" --device cuda >"$work/out" 2>&1 ||
    complain "verify $model: $(tail -3 "$work/out")"
done

for device in cpu cuda; do
  "$czero" generate --model "$models/gpt2" --prompt "ABC 12" --no-echo --max-new-tokens 8 \
    --device $device >"$work/text.$device" 2>"$work/err" || complain "generate: $(cat "$work/err")"
done
cmp -s "$work/text.cpu" "$work/text.cuda" || complain "generate: another text on cuda"

# A small classifier: trained on either device, judged on either.
awk 'BEGIN { print "text,label"
  for (i = 0; i < 24; i++) print (i % 2 ? "a fine sunny day" : "rain and cold wind") " " i "," (i % 2 ? "good" : "bad") }' \
  >"$work/texts.csv"
cat >"$work/config.json" <<'J'
{"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2, "gradient_clipping": 1.0,
 "optimizer": {"type": "AdamW", "params": {"lr": 0.003}}}
J
mkdir "$work/model"
cat >"$work/model/config.json" <<'J'
{"architectures": ["BertForSequenceClassification"], "model_type": "bert", "hidden_size": 24,
 "intermediate_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2, "vocab_size": 300,
 "max_position_embeddings": 32, "type_vocab_size": 2, "hidden_act": "gelu", "layer_norm_eps": 1e-12,
 "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "pad_token_id": 0}
J
for device in cpu cuda; do
  "$czero" train --config "$work/config.json" --model "$work/model" --task classification \
    --init random --tokenizer bytes --data "$work/texts.csv" --seq-len 24 --steps 3 --device $device \
    --curve "$work/$device.csv" --export "$work/$device" --quiet >"$work/out" 2>&1 ||
    complain "train on $device: $(tail -3 "$work/out")"
done
# step,loss,…
paste -d, "$work/cpu.csv" "$work/cuda.csv" | awk -F, '
  NR > 1 { d = $2 - $7; n++; if (d < 0) d = -d; if (!($2 > 0) || d > 1e-4 * $2) bad = 1 }
  END { exit !(n == 3 && !bad) }' ||
  complain "train: other losses: $(paste "$work/cpu.csv" "$work/cuda.csv")"

for device in cpu cuda; do
  "$czero" eval --model "$work/cuda" --data "$work/texts.csv" --tokenizer bytes --device $device \
    >"$work/eval.$device" 2>"$work/err" || complain "eval: $(cat "$work/err")"
  "$czero" predict --model "$work/cuda" --text "a fine day" --tokenizer bytes --device $device \
    >"$work/predict.$device" 2>"$work/err" || complain "predict: $(cat "$work/err")"
done
cmp -s "$work/eval.cpu" "$work/eval.cuda" || complain "eval: another judgement on cuda"
cmp -s "$work/predict.cpu" "$work/predict.cuda" || complain "predict: another class on cuda"

# Packed chats: several in a row, apart by documents.
printf '%s' "{% for m in messages %}<{{ m.role }}>{{ m.content }}.{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}" \
  >"$work/t.jinja"
awk 'BEGIN { for (i = 0; i < 24; i++) printf "{\"messages\": [{\"role\": \"user\", \"content\": \"%d\"}, {\"role\": \"assistant\", \"content\": \"%s\"}]}\n", i, i % 3 ? "odd" : "three, then" }' \
  >"$work/chats.jsonl"
for device in cpu cuda; do
  "$czero" train --config "$work/config.json" --model llama-tiny --task sft --chat-template "$work/t.jinja" --packing \
    --tokenizer bytes --data "$work/chats.jsonl" --eval-data "$work/chats.jsonl" --seq-len 96 --steps 3 --device $device \
    --curve "$work/chats-$device.csv" --quiet >"$work/figures.$device" 2>"$work/out" || complain "chats on $device: $(tail -3 "$work/out")"
done
paste -d, "$work/chats-cpu.csv" "$work/chats-cuda.csv" | awk -F, '
  NR > 1 { d = $2 - $7; n++; if (d < 0) d = -d; if (!($2 > 0) || d > 1e-4 * $2) bad = 1 }
  END { exit !(n == 3 && !bad) }' ||
  complain "packed chats: other losses: $(paste "$work/chats-cpu.csv" "$work/chats-cuda.csv")"
grep -q '^eval_accuracy 0[.]' "$work/figures.cpu" || complain "packed chats: no accuracy of tokens"
paste "$work/figures.cpu" "$work/figures.cuda" | awk '{ d = $2 - $4; if (d < 0) d = -d; if (d > 2e-3) bad = 1 } END { exit bad }' ||
  complain "packed chats: other figures: $(paste "$work/figures.cpu" "$work/figures.cuda")"

# An adapter with DoRA: one file from all stages.
for run in cpu-0 cuda-0 cuda-2 cuda-3; do
  printf '{"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": %d}, "optimizer": {"type": "AdamW", "params": {"lr": 0.003}}}' \
    "${run#*-}" >"$work/dora.json"
  "$czero" train --config "$work/dora.json" --model llama-tiny --lora rank=4,dora=true,dropout=0.1 --tokenizer bytes --data "$work/chats.jsonl" \
    --task sft --chat-template "$work/t.jinja" --seq-len 64 --steps 3 --device "${run%-*}" --curve "$work/dora-$run.csv" --export "$work/dora-$run" \
    --quiet >"$work/out" 2>&1 || complain "DoRA on $run: $(tail -3 "$work/out")"
done
paste -d, "$work/dora-cpu-0.csv" "$work/dora-cuda-0.csv" | awk -F, '
  NR > 1 { d = $2 - $7; n++; if (d < 0) d = -d; if (!($2 > 0) || d > 1e-4 * $2) bad = 1 }
  END { exit !(n == 3 && !bad) }' ||
  complain "DoRA: other losses: $(paste "$work/dora-cpu-0.csv" "$work/dora-cuda-0.csv")"
for stage in 2 3; do
  cmp "$work"/dora-cuda-{0,$stage}/adapter_model.safetensors || complain "DoRA: stage $stage gives another adapter"
done

if [ -x "$build/examples/custom_layer" ]; then
  seq 1 900 >"$work/numbers"
  for device in cpu cuda; do
    "$build/examples/custom_layer" "$work/numbers" 2 $device >"$work/custom.$device" 2>&1 ||
      complain "custom_layer: $(cat "$work/custom.$device")"
  done
  paste "$work/custom.cpu" "$work/custom.cuda" | awk '
    /^step/ { d = $4 - $11; n++; if (d < 0) d = -d; if (!($4 > 1) || d > 2e-4) bad = 1 }
    END { exit !(n > 0 && !bad) }' ||
    complain "custom_layer: $(cat "$work/custom.cpu" "$work/custom.cuda")"
fi

[ $failed = 0 ] && echo "verify, generate, train, eval, predict and a layer of your own: as on the CPU"
exit $failed
