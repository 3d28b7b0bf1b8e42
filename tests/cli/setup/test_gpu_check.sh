#!/usr/bin/env bash
# Claim: scripts/gpu_check.sh takes its options or says what is wrong with them, gives every step of a
# stage a row (passed, failed, skipped, or stopped at its limit), keeps the rows of other stages, and
# ends with 1 when a row failed; figures of benches become rows that meet their goals or do not.
set -uo pipefail
cd "$(dirname "$0")/../../.."
command -v python3 >/dev/null || { echo "skipped: python3 is needed"; exit 77; }
work=$(mktemp -d /tmp/czero-gpu-check-test-XXXXXX)
trap 'rm -rf "$work"' EXIT
failed=0
complain() { echo "$*" >&2; failed=1; }

check() { scripts/gpu_check.sh "$@" --build "$work/build" --out "$work/report" >"$work/out" 2>"$work/err"; }
says() { grep -qF -- "$1" "$work/out" "$work/err" || complain "not said: $1; but: $(cat "$work/out" "$work/err")"; }
row() { grep -qF -- "$1" "$work/report/report.md" || complain "no row: $1; but: $(cat "$work/report/report.md")"; }

# ---- options
refused() { # words, arguments…
  local words=$1
  shift
  check "$@"
  [ $? = 2 ] || complain "$*: not refused"
  says "$words"
}
refused "--stage nothing: one of build agree" --stage nothing
refused "--minutes none" --minutes none
refused "--minutes 0" --minutes 0
refused "--jobs -1" --jobs -1
refused "--limit 1h" --limit 1h
refused "--colour: no such option" --colour red
refused "fast: not an option" fast
refused "--out needs a value" --minutes 3 --out
refused "no such file" --stage build --pack "$work/missing.tar.gz"
scripts/gpu_check.sh --help >"$work/out" 2>"$work/err" || complain "--help: exit $?"
says "--minutes N"
scripts/gpu_check.sh --list --stage build,memory,bench --only 'plan|compile' >"$work/out" || complain "--list: exit $?"
says "build     compile"
says "memory    a plan that does not fit"
[ "$(grep -c bench "$work/out")" = 0 ] || complain "--only does not choose"

refused "--part D: A, B or C" --part D
scripts/gpu_check.sh --list --part A >"$work/out" || complain "--list --part A: exit $?"
[ "$(cut -d' ' -f1 "$work/out" | uniq | tr '\n' ' ')" = "build large bench profile " ] || complain "part A: $(cat "$work/out")"
scripts/gpu_check.sh --list --part B --only 'same weights|oracle' >"$work/out" || complain "--list --part B: exit $?"
grep -q 'the same weights' "$work/out" || complain "part B: $(cat "$work/out")"
scripts/gpu_check.sh --list --part C >"$work/out" || complain "--list --part C: exit $?"
[ "$(tail -1 "$work/out" | cut -d' ' -f1)" = sanitize ] || complain "part C: $(tail -1 "$work/out")"

# ---- a machine without a GPU, or with one
mkdir -p "$work/build/tests/gpu" "$work/build/bench" "$work/build/bin"
program() { printf '#!/bin/sh\n%s\n' "$2" >"$work/build/$1" && chmod +x "$work/build/$1"; }
PATH=$work/build/bin:$PATH
program bin/nvidia-smi 'echo "NVIDIA-SMI has failed" >&2; exit 9'
if ! compgen -G '/dev/nvidia[0-9]*' >/dev/null; then
  check --stage agree,bench
  [ $? = 1 ] || complain "no GPU does not show in the exit code"
  row '| agree | a GPU |  |  |  | fail | exit 1: no GPU here'
  row '| bench | a GPU |  |  |  | fail | exit 1: no GPU here'
  [ ! -e "$work/build/CMakeCache.txt" ] || complain "it is built for a GPU that is not there"
  rm -r "$work/build/report" "$work/report"
fi
program bin/nvidia-smi 'echo "GPU 0: one that is not there"'

# ---- a build that is made of scripts
program czero 'echo "czero: no GPU here" >&2; exit 2'
program tests/gpu/test_good 'echo "Running suite(s): good"; echo "100%: Checks: 7, Failures: 0, Errors: 0"'
program tests/gpu/test_bad 'echo "50%: Checks: 2, Failures: 1, Errors: 0"; echo "f.c:9:F:all:x:0: a | b is wrong"; exit 1'
program tests/gpu/test_left_out 'echo "skipped: two GPUs are needed"; exit 77'
program tests/gpu/test_hangs 'echo "ok 3 - f.h:this one" >"$CK_TAP_LOG_FILE_NAME"; sleep 60'
program tests/gpu/test_not_now_slow 'exit 1'
program bench/ops_cuda 'cat <<EOF
{"figure": "fast op", "value": 950, "unit": "GB/s", "ratio": 0.95, "goal": 0.9, "goal_of": "of copy bandwidth"}
{"figure": "slow op", "value": 500, "unit": "GB/s", "ratio": 0.5, "goal": 0.8}
{"figure": "small step", "value": 1.1, "unit": "s", "ratio": 1.1, "goal_max": 1.15}
{"figure": "told", "value": 12345.6, "unit": "tokens/s", "note": "beside nothing"}
{"figure": "left out", "skipped": "no peer here", "goal": 1.2}
EOF'
check --stage agree --limit 2 --jobs 4 --only 'test_(good|bad|left_out|hangs|not_now_slow)$'
[ $? = 1 ] || complain "a failed row does not show in the exit code"
row '| agree | test_good | 7 cases, 100 % | all cases |  | pass |  |'
row '| agree | test_bad | 2 cases, 50 % | all cases |  | fail | exit 1: f.c:9:F:all:x:0: a \| b is wrong |'
row '| agree | test_left_out |  | all cases |  | skipped | two GPUs are needed |'
row '| agree | test_hangs |  | all cases |  | fail | no end after 2 s; the last case that ended: ok 3 - f.h:this one |'
row '2 fail, 1 pass, 1 skipped'
grep -q not_now "$work/report/report.md" && complain "a slow test was run"

check --stage bench --only 'ops' && complain "a goal that is not met is no failure"
row '| agree | test_good |'
row '| bench | fast op | 950 GB/s | ≥ 0.9 of copy bandwidth | 0.95 | pass |  |'
row '| bench | slow op | 500 GB/s | ≥ 0.8 | 0.5 | fail |  |'
row '| bench | small step | 1.1 s | ≤ 1.15 | 1.1 | pass |  |'
row '| bench | told | 12,346 tokens/s |  |  | told | beside nothing |'
row '| bench | left out |  | ≥ 1.2 |  | skipped | no peer here |'
python3 -c '
import json, sys
report = json.load(open(sys.argv[1]))
assert len(report["rows"]) == 9 and not report["simulated"], report
assert {r["status"] for r in report["rows"]} == {"pass", "fail", "skipped", "told"}
' "$work/report/report.json" || complain "report.json"
[ "$(find "$work/report" -type f | wc -l)" = 3 ] || complain "the report has: $(ls -R "$work/report")"
tar -tzf "$work/report/logs.tar.gz" | grep agree-test_bad >"$work/found" || complain "no logs"

# ---- what earlier commands have left
program tests/gpu/test_bad 'echo "100%: Checks: 2, Failures: 0, Errors: 0"'
program tests/gpu/test_new 'echo "100%: Checks: 3, Failures: 0, Errors: 0"'
program bench/memory_cuda 'exit 1'
check --stage agree,largest --continue --minutes 1 --only 'test_(good|bad|new)$|largest' && complain "a failure is forgotten"
row '| agree | test_bad | 2 cases, 50 % | all cases |  | fail |'
row '| agree | test_new | 3 cases, 100 % | all cases |  | pass |'
row '| largest | the largest model |  |  |  | skipped | the 1 minutes are over |'
[ "$(grep -c 'test_good' "$work/report/report.md")" = 1 ] || complain "a row is there twice: $(cat "$work/report/report.md")"

# ---- compute-sanitizer: findings, none, a program that it cannot start, a device that it refuses
program bin/compute-sanitizer 'echo "========= COMPUTE-SANITIZER"
case $* in
  *memcheck*test_step_cuda) echo "100%: Checks: 1"; echo "========= ERROR SUMMARY: 0 errors" ;;
  *memcheck*test_cross_entropy_cuda) echo "========= Invalid __global__ write of size 4 bytes"; echo "========= ERROR SUMMARY: 1 error"; exit 9 ;;
  *racecheck*test_cross_entropy_cuda) echo "========= Error: couldn'"'"'t find exit code."; exit 255 ;;
  *) echo "$1" >>'"$work/asked"'; echo "========= Error: Device not supported. Please refer to the manual"; exit 255 ;;
esac'
for name in step cross_entropy norm reduce; do program "tests/gpu/test_${name}_cuda" 'exit 0'; done
check --stage sanitize --only '_cuda,' && complain "a finding is no failure"
row '| sanitize | memcheck: test_step_cuda, adam_agrees_forward | 1 cases, 100 % | no findings |  | pass |'
row '| sanitize | memcheck: test_cross_entropy_cuda, it_agrees_forward |  | no findings |  | fail | exit 9: ========= Invalid __global__ write of size 4 bytes |'
row '| sanitize | racecheck: test_cross_entropy_cuda, it_agrees_forward |  | no findings |  | skipped | compute-sanitizer ended with 255 before its summary'
row '| sanitize | racecheck: test_reduce_cuda, squares_agree_forward |  | no findings |  | skipped | compute-sanitizer does not support this device |'
[ "$(wc -l <"$work/asked")" = 1 ] || complain "a tool that refuses the device is asked again"

rm -r "$work/report" "$work/build/report"
check --stage agree,bench --simulated --only 'test_good|ops' || complain "--simulated: exit $?"
row 'the simulated device: nothing here is a measurement'
row '| bench | slow op | 500 GB/s | ≥ 0.8 | 0.5 | ran |  |'

# ---- programs that were packed: those of these sources are taken, others are not
mkdir -p "$work/pack/prebuilt/tests/gpu" "$work/pack/deps/lib" "$work/pack/deps/runtime" "$work/packed"
for name in czero libczero_cuda.so tests/gpu/test_norm_cuda; do
  printf '#!/bin/sh\necho "czero 9.9"\n' >"$work/pack/prebuilt/$name" && chmod +x "$work/pack/prebuilt/$name"
done
packed() { # the sum of the sources
  echo "$1" >"$work/pack/prebuilt/sources.sha256"
  python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1], "w:xz").add(sys.argv[2], ".")' "$work/pack.tar.xz" "$work/pack"
  rm -rf "$work/packed"
  scripts/gpu_check.sh --stage build --only "pack's" --build "$work/packed" --out "$work/report" --pack "$work/pack.tar.xz" \
    >"$work/out" 2>"$work/err"
}
packed "$(scripts/gpu_pack.sh --sources)"
row "| build | the pack's programs | czero 9.9 |  |  | pass |"
[ -x "$work/packed/czero" ] && [ -d "$work/packed/fixtures" ] || complain "the pack's programs are not where a build puts them"
packed other
row "| build | the pack's programs |  |  |  | skipped | the pack's programs are of other sources than these |"

# ---- curves
printf 'step,loss,lr_next,grad_norm,loss_scale\n1,5.5,0.001,nan,1.0\n2,5.25,0.002,2.0,1.0\n' >"$work/want.csv"
sed 's/5\.25/5.25004/' "$work/want.csv" >"$work/near.csv"
sed 's/0\.002/0.00201/' "$work/want.csv" >"$work/lr.csv"
head -2 "$work/want.csv" >"$work/short.csv"
report() { python3 scripts/gpu_report.py "$@" >"$work/out" 2>"$work/err"; }
report curve "$work/near.csv" "$work/want.csv" 1e-4 || complain "a near curve: $(cat "$work/out")"
says "result: loss within 4e-05 (at most 0.0001) over 2 steps"
report curve "$work/near.csv" "$work/want.csv" 1e-5 && complain "a far curve passes"
says "step 2: loss 5.25004, not 5.25"
report curve "$work/lr.csv" "$work/want.csv" 1 && complain "another learning rate passes"
report curve "$work/short.csv" "$work/want.csv" 1 && complain "half a curve passes"

[ $failed = 0 ] && echo "rows are as promised"
exit $failed
