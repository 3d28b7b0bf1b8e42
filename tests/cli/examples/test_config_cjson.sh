#!/usr/bin/env bash
# Claim: the example trains with the config that cJSON prints, and shows czero's error message for a wrong value in it.
. "$(dirname "$0")/../../support/command.sh"
example=$build/examples/config_cjson
[ -x "$example" ] || { echo "skipped: cJSON is not here: install libcjson-dev"; exit 77; }

"$example" 0.002 >out 2>err || fail "the example does not train"
grep -qF '{"train_micro_batch_size_per_gpu":2,"optimizer":{"type":"AdamW","params":{"lr":0.002}}}' out || fail "another config"
grep -qE '^loss [0-9]\.[0-9]+$' out || fail "no loss"
code=0
"$example" -1 >out 2>err || code=$?
[ $code = 1 ] || fail "exit code $code with a negative rate"
grep -qE '^config_cjson: .*optimizer\.params\.lr: ' err || fail "no place of the negative rate"
echo "a config of cJSON trains"
