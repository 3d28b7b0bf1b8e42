#!/usr/bin/env bash
# Claim: examples/preference.c, DPO on the public interface, makes TRL's losses (recorded by
# tests/interop/training/preference_check.py) at stages 0 and 3, offloaded, and and refuses bad pairs.
source "$(dirname "$0")/../../support/command.sh" "$1"
fixture=$source_dir/tests/fixtures/preference
preference=$build/examples/preference
mkdir model
cp "$build/fixtures/models/llama/"{config.json,model.safetensors} "$fixture"/tokenizer*.json model/

# losses NAME CONFIG: ten steps, each within 1e-5 of TRL's
losses() {
  "$preference" model "$fixture/pairs.tsv" "$2" 10 "out-$1" >"$1.log" 2>"$1.err" || fail "$1: $(cat "$1.err")"
  grep '^step ' "$1.log" | awk '{ print $4 }' | paste - "$fixture/losses" |
    awk '{ d = $1 - $2; if (d > 1e-5 || d < -1e-5) exit 1; n++ } END { exit n != 10 }' || fail "$1: $(cat "$1.log")"
}
losses plain "$fixture/ds.json"
sed 's|^{|{"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}, "offload_optimizer": {"device": "cpu"}}, |' \
  "$fixture/ds.json" >stage3.json
losses stage3 stage3.json
cmp out-plain/adapter_model.safetensors out-stage3/adapter_model.safetensors || fail "stages differ"

# refuses SENTENCE PAIRS
refuses() {
  printf '%b' "$2" >pairs.tsv
  "$preference" model pairs.tsv "$fixture/ds.json" 1 2>err >/dev/null && fail "$1: accepted"
  grep -q "$1" err || fail "$1: $(cat err)"
}
refuses 'no pairs' ''
refuses 'three columns' 'a\tb\n'
refuses 'too many tokens' "$(printf 'a%.0s' {1..200})"'\tb\tc\n'
status=0
"$preference" model >out || status=$?
[ $status = 2 ] && grep -q Usage out || fail "usage: $status"
