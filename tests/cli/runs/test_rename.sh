#!/usr/bin/env bash
# Claim: a checkpoint whose names have a wrapper's prefix, or marks inside, resumes as the one without, at each stage, and says
# so; --rename maps any other names; a pattern that is none, matches nothing or makes two names one is refused.
. "$(dirname "$0")/../../support/command.sh"

head -c 20000 "$source_dir/examples/data/fortunes.txt" >text.txt
cat >ds.json <<'JSON'
{"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": 0.001}}}
JSON
run=(train --model gpt2-tiny --data text.txt --tokenizer bytes --seq-len 32 --config ds.json --groups hf)
rename() { # PATTERN REPLACEMENT: "other" is "saved" under other names
  rm -rf other
  cp -r saved other
  python3 "$source_dir/tests/support/rename_tensors.py" other/global_step3 "$1" "$2"
}
same() { # MESSAGE ARGUMENTS…
  "$czero" "${run[@]}" --resume other --steps 5 --curve other.csv "${@:2}" >out 2>err || fail "$*: does not resume"
  grep -qF -- "$1" err || fail "not said: $1"
  cmp whole.csv other.csv || fail "$*: another run"
}

for stage in 0 1 3; do
  stage_of=(--set zero_optimization.stage=$stage)
  rm -rf saved whole.csv
  "$czero" "${run[@]}" "${stage_of[@]}" --steps 3 --save saved --quiet >out 2>err || fail "stage $stage: saving"
  "$czero" "${run[@]}" "${stage_of[@]}" --steps 5 --resume saved --curve whole.csv --quiet >out 2>err || fail "stage $stage: resuming"
  [ ! -s err ] || fail "stage $stage: a checkpoint of ours says something"
  for prefix in module. model. module.model. base_model.model.; do
    rename ^ $prefix
    same "names: \"$prefix\" is taken off" "${stage_of[@]}"
    [ $stage = 0 ] || break
  done
  rename '([.])h[.]' '\1_fsdp_wrapped_module.h.'
  same 'names: "_orig_mod. and the like" is taken off' "${stage_of[@]}"
  rename '^transformer[.]' 'encoder/'
  same 'names: s|^encoder/|transformer.| changed 2' "${stage_of[@]}" --rename 's|^encoder/|transformer.|'
done
# With the prefix of a wrapper on top, several commands, groups, and all matches of one
rename '^transformer[.](.*)[.]' 'module.\1.x.'
same 'names: "module." is taken off' --set zero_optimization.stage=3 --rename 's/^module\.(.*)\.x\./module.transformer.\1./'
rename '_' '-'
same 'names: s/-/_/g changed' --set zero_optimization.stage=3 --rename s/-/_/g
rename '^transformer[.]' 'a/'
same 'names: s/b/&/ changed' --set zero_optimization.stage=3 --rename 's#^a/#transformer.#' --rename 's/b/&/'

"$czero" "${run[@]}" --init other --rename 's#^a/#transformer.#' --steps 1 --quiet >out 2>err || fail "--init with --rename"
refused 2 'is missing' "${run[@]}" --resume other --steps 5
refused 2 'rename "s/a": write s/REGEX/REPLACEMENT/' "${run[@]}" --resume other --steps 5 --rename s/a
refused 2 'rename "s/a/b/x": write s/REGEX/REPLACEMENT/' "${run[@]}" --resume other --steps 5 --rename s/a/b/x
refused 2 'rename "y/a/b/": write s/REGEX/REPLACEMENT/' "${run[@]}" --resume other --steps 5 --rename y/a/b/
refused 2 'not a regular expression' "${run[@]}" --resume other --steps 5 --rename 's/(/b/'
refused 2 'rename "s/zzz/b/": no name' "${run[@]}" --resume other --steps 5 --rename s/zzz/b/
refused 2 'would both become x' "${run[@]}" --resume other --steps 5 --rename 's/.*/x/'
refused 2 'too long' "${run[@]}" --resume other --steps 5 --rename "s/\$/$(printf 'x%.0s' $(seq 500))/"
refused 2 '--rename needs --resume or --init' "${run[@]}" --steps 5 --rename s/a/b/
