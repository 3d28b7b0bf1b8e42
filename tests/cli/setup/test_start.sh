#!/usr/bin/env bash
# Claims: a run starts at once, compiles nothing and leaves nothing anywhere but where it was told to; two that start together for one user do not wait for each other. No program needs CUDA, MPI, libaio or Python to be there.
set -uo pipefail
build=$(cd "$1" && pwd)
source_dir=$(cd "$(dirname "$0")/../../.." && pwd)
work=$(mktemp -d /tmp/czero-start-XXXXXX)
trap 'rm -rf "$work"' EXIT
failed=0
complain() { echo "$*" >&2; failed=1; }

mkdir "$work"/{home,tmp,cwd,out}
head -c 20000 "$source_dir/examples/data/fortunes.txt" >"$work/text.txt"
cd "$work/cwd" || exit 1
run() { # name: train and save there, with an empty $HOME
  env -i HOME="$work/home" TMPDIR="$work/tmp" PATH=/nowhere OMP_NUM_THREADS=1 ASAN_OPTIONS=detect_leaks=0 \
    "${@:2}" "$build/czero" train --config "$source_dir/configs/quickstart.json" --model gpt2-tiny \
    --data "$work/text.txt" --seq-len 16 --steps 1 --save "$work/out/$1" --quiet
}

run a & a=$!
run b & b=$!
wait $a || complain "the first of two runs failed"
wait $b || complain "the second of two runs failed"
cmp "$work"/out/{a,b}/global_step1/mp_rank_00_model_states.pt || complain "two runs made different weights"
left=$(find "$work"/{home,tmp,cwd} -mindepth 1)
[ -z "$left" ] || complain "runs left files behind: $left"

if strace=$(command -v strace) && "$strace" -f -o "$work/trace" true 2>/dev/null; then
  run c "$strace" -y -f -o "$work/trace" -e trace=execve,openat || complain "the traced run failed"
  [ "$(grep -cF 'execve("/proc/self/exe"' "$work/trace")" -le 1 ] || complain "a run starts itself more than once" # with GOMP_SPINCOUNT
  programs=$(grep execve "$work/trace" | grep -vF 'execve("/proc/self/exe"')
  [ "$(wc -l <<<"$programs")" = 1 ] || complain "a run starts programs: $programs"
  strays=$(grep -E 'O_(WRONLY|RDWR|CREAT)' "$work/trace" | grep -vE '= -1|"/(dev|proc)/' | grep -vF -e "\"$work/out/c" -e "<$work/out/c")
  [ -z "$strays" ] || complain "a run writes elsewhere: $strays"
else
  echo "note: no strace here, what a run starts and opens is not watched"
fi

for program in czero zero_to_fp32; do
  needs=$(ldd "$build/$program" | grep -iE 'libcud|nvidia|libmpi|libaio|python|not found')
  [ -z "$needs" ] || complain "$program needs $needs"
done
[ $failed = 0 ] && echo "started at once, left nothing behind"
exit $failed
