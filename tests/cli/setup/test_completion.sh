#!/usr/bin/env bash
# Claim: in bash, zsh and fish, Tab completes commands, actions, options, choices, presets, files and folders,
# behind `czero launch -n N`, too, and for zero_to_fp32; every option of every command's help is completed.
set -uo pipefail
build=$(cd "$1" && pwd)
work=$(mktemp -d /tmp/czero-completion-XXXXXX)
trap 'rm -rf "$work"' EXIT
export PATH=$build:$PATH
cd "$work" || exit 1
mkdir model_dir
touch ds_config.json model_file
failed=0
complain() { echo "$*" >&2; failed=1; }
for shell in bash zsh fish; do czero completion $shell >"$work/czero.$shell" || complain "no script for $shell"; done

# ---- what each shell makes of the same lines: the line up to Tab, one answer, one that must not be there
cases='czero tra|train|tune
czero config ch|check|show
czero train --conf|--config|--model
czero train --task mask|masked-lm|causal-lm
czero train --model llama3-8|llama3-8b|gpt2
czero train --config ds|ds_config.json|model_file
czero train --model gpt2 --config ds|ds_config.json|model_file
czero plan --config model_f|model_file|ds_config.json
czero export --model model_|model_dir|model_file
czero launch -n 2 tra|train|tune
czero launch -n 2 train --task mask|masked-lm|causal-lm
czero launch -n 2 train --early|--early-stopping|--epochs
czero completion z|zsh|bash
czero man verif|verify|train
czero config show --strict --compat 0.19|0.19|0.16
zero_to_fp32 --dtype bfloat|bfloat16|float16
zero_to_fp32 --exclude|--exclude_frozen_parameters|--verify'

# bash: the function that `complete` names, with the words that readline would give it
# shellcheck disable=SC2034
complete_in_bash() { # words, the last one is being typed
  COMP_WORDS=("$@")
  COMP_CWORD=$(($# - 1))
  COMPREPLY=()
  "${function[$1]}"
  printf '%s\n' "${COMPREPLY[@]}"
}
# shellcheck disable=SC1091
. "$work/czero.bash"
declare -A function
for program in czero zero_to_fp32; do
  function[$program]=$(complete -p $program | sed 's/.*-F \([^ ]*\).*/\1/') || complain "bash: nothing for $program"
done
while IFS='|' read -r line answer other; do
  read -ra words <<<"$line"
  complete_in_bash "${words[@]}" >out 2>err || complain "bash: $line: exit $?"
  [ -s err ] && complain "bash: $line: $(cat err)"
  grep -qxF -- "$answer" out || complain "bash: \"$line\" does not give $answer: $(tr '\n' ' ' <out)"
  grep -qxF -- "$other" out && complain "bash: \"$line\" gives $other"
done <<<"$cases"
also() { # answer, words…
  complete_in_bash "${@:2}" >out
  grep -qxF -- "$1" out || complain "bash: ${*:2} does not give $1"
}
also masked-lm czero train --task = mask
also classification czero train --task =
also vocab czero ''
also --early-stopping czero launch -n 2 -- train --early
n=0
for command in $(czero --help | sed -n '/^Commands:/,/^$/s/^  \([a-z]*\) .*/\1/p'); do
  for option in $(czero "$command" --help | sed -n 's/^  \(-[-a-zA-Z0-9]*\).*/\1/p'); do
    [[ $option == -[hvVS] ]] && continue # their long forms
    also "$option" czero "$command" -
    n=$((n + 1))
  done
done
[ $n -gt 100 ] || complain "only $n options seen"
said="bash"

# zsh: a shell in a pseudo-terminal; the line that Tab made is printed instead of run
if command -v zsh >/dev/null; then
  mkdir functions
  cp czero.zsh functions/_czero
  cat >drive.zsh <<'ZSH'
zmodload zsh/zpty || exit 1
zpty z "TERM=dumb zsh -f -i"
zpty -w z "PS1=; stty cols 500; unsetopt prompt_cr prompt_sp; fpath=($PWD/functions \$fpath); autoload -Uz compinit; compinit -u -D; print re''ady"
zpty -r -m z seen "*ready*"
while IFS='|' read -r line answer other; do
  zpty -w -n z "$line"$'\t'$'\C-a'"print -r -- "$'\C-e'"; print EN''D"$'\n'
  zpty -r -m z seen "*END*"
  print -r -- "$seen" | tr -d '\r' | grep -qE -- "^(.* )?$answer/? *\$" || print -r -- "zsh: \"$line\" does not give $answer: $seen"
done
ZSH
  timeout 60 zsh -f drive.zsh <<<"$cases" >out 2>err || complain "zsh: $(cat err)"
  [ -s out ] && complain "$(cat -v out)"
  said+=", zsh"
else
  said+=" (no zsh here)"
fi

# fish says what it would offer
if command -v fish >/dev/null; then
  while IFS='|' read -r line answer other; do
    HOME=$work fish --no-config -c "source '$work/czero.fish'; complete -C '$line'" >out 2>err || complain "fish: $line: exit $?"
    [ -s err ] && complain "fish: $line: $(cat err)"
    cut -f1 out | grep -qE -- "^$answer/?\$" || complain "fish: \"$line\" does not give $answer: $(tr '\n' ' ' <out)"
    cut -f1 out | grep -qxF -- "$other" && complain "fish: \"$line\" gives $other"
  done <<<"$cases"
  said+=", fish"
else
  said+=" (no fish here)"
fi
[ $failed = 0 ] && echo "$n options; $said"
exit $failed
