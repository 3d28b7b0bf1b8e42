#!/usr/bin/env bash
# Claims: `czero config` prints results on stdout and sentences on stderr, and exits with the right code.
set -u
czero=$1/czero
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
n_failed=0

echo '{"train_batch_size": 8, "zero_optimization": {"stage": 2}, "gradient_clipping": 1.0}' >"$tmp/a"
echo '{"train_batch_size": 16, "bf16": {"enabled": true}, "foo": 1}' >"$tmp/b"
echo '{"train_batch_size": 8, "zero_optimization": {"stage": 7}}' >"$tmp/bad"
echo '{"train_batch_size": "auto", "optimizer": {"type": "AdamW", "params": {"lr": "auto"}}}' >"$tmp/auto"
echo '{"train_batch_size": 8, "zero_optimization": {"stage": 3}, "sequence_parallel_size": 2}' >"$tmp/later"
echo '{"train_batch_size": True}' >"$tmp/python"

"$czero" config show "$tmp/a" >"$tmp/show1" 2>"$tmp/err" || n_failed=$((n_failed + 1))
[ -s "$tmp/err" ] && { echo "notes where none belong:"; cat "$tmp/err"; n_failed=$((n_failed + 1)); }
"$czero" config show "$tmp/show1" >"$tmp/show2" 2>/dev/null || n_failed=$((n_failed + 1))
cmp "$tmp/show1" "$tmp/show2" || n_failed=$((n_failed + 1))
grep -q '"train_micro_batch_size_per_gpu": 8' "$tmp/show1" || n_failed=$((n_failed + 1))

fails() { # pattern on stderr, arguments: exit 2, nothing on stdout
    local err=$1
    shift
    "$czero" config "$@" >"$tmp/out" 2>"$tmp/err"
    local got=$?
    if [ $got != 2 ] || [ -s "$tmp/out" ] || ! grep -qE -- "$err" "$tmp/err"; then
        echo "czero config $*: exit $got, expected 2 and '$err':"
        head -5 "$tmp/out" "$tmp/err"
        n_failed=$((n_failed + 1))
    fi
}
works() { # pattern on stdout, arguments: exit 0
    local out=$1
    shift
    "$czero" config "$@" >"$tmp/out" 2>"$tmp/err"
    local got=$?
    if [ $got != 0 ] || ! grep -qE -- "$out" "$tmp/out"; then
        echo "czero config $*: exit $got, expected 0 and '$out':"
        head -5 "$tmp/out" "$tmp/err"
        n_failed=$((n_failed + 1))
    fi
}

works '"stage": 3' show "$tmp/later"
works 'train_batch_size = 8  # line 1;' show "$tmp/a" --explain
works 'can train: batch 8 = 4 x 1 accumulated x 2 ranks' check "$tmp/a" --world-size 2
works '^train_batch_size: 8 -> 16$' diff "$tmp/a" "$tmp/b"
works '"lr": 0.001' show "$tmp/auto" --auto train_batch_size=4 optimizer.params.lr=1e-3
works '"lr": "auto"' show "$tmp/auto" --auto=train_batch_size=4
works '"stage": 1' show "$tmp/a" --set zero_optimization.stage=1
works '"gradient_clipping": 0.0' show "$tmp/b" --compat 0.16
works '^# Keys of ds_config.json' reference
works '^Usage' --help
fails 'bad:1:56: zero_optimization.stage: 7 is outside 0..3' show "$tmp/bad"
fails 'not supported: sequence parallelism' check "$tmp/later"
# An "auto" that DeepSpeed cannot read is filled in, as `check` does; for diff, in both files.
for action in check show; do works '1 x 1 acc|"lr": 5e-05' $action "$tmp/auto"; done
grep -q "filled in as Hugging Face's Trainer does: train_batch_size 1, optimizer.params.lr 5e-05" "$tmp/err" ||
    { echo "show is silent about what it filled in: $(cat "$tmp/err")"; n_failed=$((n_failed + 1)); }
works '"train_batch_size": 2,' show "$tmp/auto" --micro-batch 2
echo '{"train_batch_size": 1, "optimizer": {"type": "AdamW", "params": {"lr": "auto"}}}' >"$tmp/half"
"$czero" config diff "$tmp/auto" "$tmp/half" --exit-code >"$tmp/out" 2>&1 ||
    { echo "equal once filled in, but they differ: $(cat "$tmp/out")"; n_failed=$((n_failed + 1)); }
echo '{"train_batch_size": "auto", "zero_optimization": {"stage": 7}}' >"$tmp/worse"
fails '7 is outside 0..3' show "$tmp/worse"
fails '7 is outside 0..3' diff "$tmp/auto" "$tmp/worse"
works "can train: batch 4 = 4 x 1 accumulated x 1 rank, fp32, ZeRO stage 0, optimizer adamw, schedule linear" \
    check "$tmp/auto" --auto train_batch_size=4
grep -q "filled in as Hugging Face's Trainer does: optimizer.params.lr 5e-05, scheduler linear" "$tmp/err" ||
    n_failed=$((n_failed + 1))
works '"lr": 5e-05' show "$tmp/auto" --filled --micro-batch 2
echo '{"train_batch_size": 8, "optimizer": {"type": "Adam", "params": {"lr": 1}}}' >"$tmp/own"
fails "own:1:72: optimizer.params.lr: the config says 1, and --lr .* asks for 3" check "$tmp/own" --lr 3
fails 'did you mean optimizer.params.lr?' check "$tmp/auto" --auto lr=5
fails 'did you mean "optimizer.params.lr"?' check "$tmp/a" --set optimizer.lr=5
fails 'write true' show "$tmp/python"
fails 'foo: unknown key' show "$tmp/b" --strict
fails 'cannot be opened' check "$tmp/nothing"
fails 'B is missing' diff "$tmp/a"
fails 'unexpected word' check "$tmp/a" "$tmp/b"
# an option of another action is no option of this one
fails 'unknown option --explain' check "$tmp/a" --explain
fails 'unknown option --exit-code' show "$tmp/a" --exit-code
fails 'unexpected word "all"' reference all
fails 'is not one of' show "$tmp/a" --compat 0.17
fails 'unknown action' frobnicate "$tmp/a"
fails 'less than 1' show "$tmp/a" --world-size 0
"$czero" config diff "$tmp/a" "$tmp/b" --exit-code >/dev/null 2>&1
[ $? = 1 ] || { echo "diff --exit-code did not exit 1"; n_failed=$((n_failed + 1)); }
"$czero" config show "$tmp/b" --quiet >/dev/null 2>"$tmp/quiet" && [ ! -s "$tmp/quiet" ] || {
    echo "--quiet printed something: $(cat "$tmp/quiet")"
    n_failed=$((n_failed + 1))
}
[ $n_failed = 0 ] || { echo "$n_failed failures"; exit 1; }
