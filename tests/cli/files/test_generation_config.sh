#!/usr/bin/env bash
# Claims: czero generate and czero chat take what generation_config.json says of sampling, of the repetition penalty and of the number
# of tokens, as transformers does; options come first; sampling counts only with "do_sample": true; what czero does not have is named once,
# an error under --strict; values of other types or ranges are an error with file and line.
. "$(dirname "$0")/../../support/command.sh"

head -c 4000 "$source_dir/examples/data/fortunes.txt" >text.txt
"$czero" train --config "$source_dir/configs/zero0.json" --model gpt2-tiny --tokenizer bytes --data text.txt --seq-len 32 --steps 2 \
  --export model --quiet >out 2>err || fail "no model"
rm -f model/generation_config.json
say() { printf '%s\n' "$1" >model/generation_config.json; }
text() { "$czero" generate --model model --prompt abc "$@" 2>err || fail "generate $*"; }
same() { # WHAT OPTIONS OF THE ONE … -- OF THE OTHER, without a file
  local what=$1 a=() b=()
  shift
  while [ "$1" != -- ]; do a+=("$1"); shift; done
  shift
  b=("$@")
  text "${a[@]}" >with
  cp err err.with
  mv model/generation_config.json kept.json
  text "${b[@]}" >without
  mv kept.json model/generation_config.json
  cmp -s with without || fail "$what: $(cat with) and $(cat without)"
}
text --max-new-tokens 12 >greedy

say '{"do_sample": true, "temperature": 0.75, "top_p": 0.5, "top_k": 7, "max_new_tokens": 12, "repetition_penalty": 1.5}'
same "all values" --seed 3 -- --temperature 0.75 --top-p 0.5 --top-k 7 --max-new-tokens 12 --repetition-penalty 1.5 --seed 3
grep -q 'model/generation_config.json: sampling with temperature 0.75, top-k 7, top-p 0.5' err.with || fail "sampling is not told"
grep -q 'repetition penalty 1.5' err.with || fail "the penalty is not told"
same "options first" --temperature 2 --top-p 1 --top-k 0 --max-new-tokens 5 --repetition-penalty 1 -- --temperature 2 --max-new-tokens 5
same "one option" --top-k 3 -- --temperature 0.75 --top-p 0.5 --top-k 3 --max-new-tokens 12 --repetition-penalty 1.5
same "no sampling" --temperature 0 --repetition-penalty 1 -- --max-new-tokens 12
! grep -q sampling err.with || fail "sampling is told where there is none"

say '{"do_sample": true, "max_new_tokens": 12}'
same "sampling alone" --seed 5 -- --temperature 1 --max-new-tokens 12 --seed 5
say '{"temperature": 0.75, "top_k": 7, "top_p": 0.5, "max_new_tokens": 12}'
same "without do_sample" -- --max-new-tokens 12
say '{"do_sample": false, "temperature": 0.75, "top_k": 7, "repetition_penalty": 1.5, "max_new_tokens": 12}'
same "do_sample false" --top-p 0.5 -- --top-p 0.5 --repetition-penalty 1.5 --max-new-tokens 12
say '{"_from_model_config": true, "bos_token_id": 1, "pad_token_id": 0, "transformers_version": "4.51.0", "num_beams": 1, "min_p": 0.0}'
same "nothing" --max-new-tokens 12 -- --max-new-tokens 12
[ ! -s err.with ] || fail "harmless settings are named"

say '{
  "num_beams": 4,
  "no_repeat_ngram_size": 3, "suppress_tokens": [1]}'
text --max-new-tokens 1 >with
grep -q 'model/generation_config.json: settings that czero does not use: num_beams (line 2), no_repeat_ngram_size (line 3), suppress_tokens' err ||
  fail "what czero does not have is not named"
refused 2 'num_beams' generate --model model --prompt abc --strict
if "$czero" chat --help >out 2>err; then
  echo hello | "$czero" chat --model model --max-new-tokens 1 >out 2>err || true
  grep -q num_beams err || fail "chat does not read the file"
fi
for bad in '"temperature": -0.5' '"temperature": "hot"' '"top_p": 1.5' '"top_p": -0.1' '"top_k": -2' '"top_k": 1.5' '"repetition_penalty": 0' \
  '"max_new_tokens": 0' '"max_new_tokens": -2' '"max_new_tokens": 3000000000' '"do_sample": 1' '"temperature": 1e999'; do
  say "{\"do_sample\": true,
 $bad}"
  refused 4 'model/generation_config.json:2:' generate --model model --prompt abc
done
say '[1]'
refused 4 'generation_config.json' generate --model model --prompt abc
