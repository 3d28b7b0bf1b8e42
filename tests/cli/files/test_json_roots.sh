#!/usr/bin/env bash
# Claim: a JSON file of a model's folder whose root, or whose parts, are of another type is damaged input: no command
# crashes, and none that reads the file ends well.
. "$(dirname "$0")/../../support/command.sh"
cp -rL "$build/fixtures/embed" model && chmod -R u+w model && mkdir model/1_Pooling
st=sentence_transformers.models
echo "[{\"type\": \"$st.Transformer\", \"path\": \"\"}, {\"type\": \"$st.Pooling\", \"path\": \"1_Pooling\"}]" >model/modules.json
echo '{"pooling_mode_mean_tokens": true}' >model/1_Pooling/config.json
echo '{"max_seq_length": 8}' >model/sentence_bert_config.json
echo '{"default_prompt_name": null}' >model/config_sentence_transformers.json
echo '{"eos_token_id": 1}' >model/generation_config.json
echo '{}' >model/added_tokens.json
echo '{}' >model/special_tokens_map.json
embed() { "$czero" embed --model model --text a --json >out 2>err; }
embed || fail "the folder is not sound"

files=$(cd model && find . -name '*.json' | LC_ALL=C sort)
[ "$(wc -w <<<"$files")" = 10 ] || fail "files: $files"
for file in $files; do
  cp model/$file kept
  for root in '[true]' '["a"]' '[[1]]' '[{}]' '[]' '"x"' 1 null '{}' '{"a": [1]}'; do
    echo "$root" >model/$file
    code=0
    embed || code=$?
    case $file,$root in
      # what a member is missing of, or what embed reads nothing of
      *generation_config.json,* | *added_tokens.json,* | *map.json,{* | *tokenizer_config.json,{* | *sentence*,{*) want='^[04]$' ;;
      *modules.json,* | *1_Pooling*) want='^[24]$' ;;
      *) want='^4$' ;;
    esac
    [[ $code =~ $want ]] || fail "$file $root: embed ends with $code"
    for command in "inspect model" "export model.safetensors x" "plan --model model --seq-len 8"; do
      code=0
      "$czero" $command >out 2>err || code=$?
      [ $code -le 4 ] || fail "$file $root: $command ends with $code"
    done
  done
  cp kept model/$file
done
