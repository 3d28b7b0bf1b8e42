#!/usr/bin/env bash
# Claim: relatives of BERT (MegatronBERT with norms in front, RoBERTa with positions that count tokens, ELECTRA with narrow embeddings, ModernBERT with windows, MPNet and DeBERTa
# with scores that depend on distances, from tables that all layers share) train as masked
# language models and as classifiers, ELECTRA as a discriminator, too, and give the same weights in every stage, with everything on NVMe, and, for two
# ranks, in every stage; what they export is read, measures and predicts.
. "$(dirname "$0")/../../support/command.sh"

head -c 20000 "$source_dir/examples/data/fortunes.txt" >text.txt
"$czero" vocab --data text.txt --kind wordpiece --size 300 -o vocab >out 2>err || fail "no vocabulary"
echo '[["war and peace", "book"], ["salt and soup, and more of it", "food"], ["a book", "book"], ["bread", "food"]]' >labels.json
cat >ds.json <<'JSON'
{"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 1.0,
 "optimizer": {"type": "AdamW", "params": {"lr": 0.003, "weight_decay": 0.01}},
 "zero_optimization": {"stage": 0, "reduce_bucket_size": 4000, "stage3_prefetch_bucket_size": 4000}}
JSON
nvme() {
  echo "--set zero_optimization.offload_$1.device=nvme --set zero_optimization.offload_$1.nvme_path=$work"
}
shape='"vocab_size": 300, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48,
       "pad_token_id": 0'
mkdir megatron roberta electra modernbert mpnet deberta
echo "{\"model_type\": \"megatron-bert\", $shape, \"max_position_embeddings\": 24}" >megatron/config.json
echo "{\"model_type\": \"roberta\", $shape, \"max_position_embeddings\": 25, \"type_vocab_size\": 1}" >roberta/config.json
echo "{\"model_type\": \"electra\", $shape, \"max_position_embeddings\": 24, \"embedding_size\": 20}" >electra/config.json
echo "{\"model_type\": \"modernbert\", $shape, \"max_position_embeddings\": 24, \"local_attention\": 8, \"classifier_pooling\": \"mean\"}" \
  >modernbert/config.json
echo "{\"model_type\": \"mpnet\", $shape, \"max_position_embeddings\": 26}" >mpnet/config.json
echo "{\"model_type\": \"deberta-v2\", $shape, \"max_position_embeddings\": 24, \"position_buckets\": 8, \"relative_attention\": true,
       \"share_att_key\": true, \"pos_att_type\": \"p2c|c2p\", \"norm_rel_ebd\": \"layer_norm\", \"position_biased_input\": false}" >deberta/config.json

same() { # NAME OF THE FIRST, NAME OF THE SECOND
  cmp "$1/model.safetensors" "$2/model.safetensors" || fail "$2 has other weights than $1"
}
for model in megatron roberta electra modernbert mpnet deberta; do
  for task in masked-lm classification replaced-tokens; do
    data=text.txt
    [ $task != classification ] || data=labels.json
    [ $model = electra ] || [ $task != replaced-tokens ] || continue
    train=(train --config ds.json --model $model --init random --task $task --tokenizer vocab --data $data --seq-len 24 --steps 3 --quiet)
    whole=$model-$task
    "$czero" "${train[@]}" --export "$whole" >out 2>err || fail "$whole: training failed"
    for stage in 1 2 3; do
      "$czero" "${train[@]}" --set zero_optimization.stage=$stage --export $stage-"$whole" >out 2>err || fail "$whole: stage $stage"
      same "$whole" $stage-"$whole"
      "$czero" launch -n 2 -- "${train[@]}" --set zero_optimization.stage=$stage --export two-$stage-"$whole" >out 2>err ||
        fail "$whole: stage $stage, two ranks"
      same two-1-"$whole" two-$stage-"$whole"
    done
    # shellcheck disable=SC2046
    "$czero" "${train[@]}" --set zero_optimization.stage=3 $(nvme optimizer) $(nvme param) --export nvme-"$whole" >out 2>err ||
      fail "$whole: NVMe"
    same "$whole" nvme-"$whole"
  done
  "$czero" predict --model $model-classification --text "a book" >out 2>err || fail "$model: no prediction"
  grep -qE 'book|food' out || fail "$model: no class"
  "$czero" eval --model $model-masked-lm --data text.txt --seq-len 24 >out 2>err || fail "$model: no evaluation"
done
"$czero" eval --model electra-replaced-tokens --data text.txt --seq-len 24 >out 2>err || fail "no evaluation of a discriminator"
"$czero" train --config ds.json --model electra-replaced-tokens --task classification --data labels.json --steps 1 >out 2>err ||
  fail "no classifier from a discriminator"
grep -q "classifier.dense.weight" err || fail "no message that the head is new"
code=0
"$czero" train --config ds.json --model roberta --init random --task replaced-tokens --tokenizer vocab --data text.txt --steps 1 >out 2>err || code=$?
[ $code = 2 ] && grep -q "no head for replaced tokens" err || fail "RoBERTa has no discriminator: exit code $code"
code=0
"$czero" train --config ds.json --model roberta --init random --task masked-lm --tokenizer vocab --data text.txt --seq-len 25 --steps 1 >out 2>err || code=$?
[ $code = 2 ] && grep -q "24" err || fail "a sequence of 25 in 24 positions: exit code $code"
