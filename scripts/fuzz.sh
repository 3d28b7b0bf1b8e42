#!/usr/bin/env bash
# Fuzz the readers with clang's libFuzzer, AddressSanitizer and UndefinedBehaviorSanitizer.
#   scripts/fuzz.sh [TARGET [SECONDS]]   one target (default: all, one after the other; 300 s each)
#   scripts/fuzz.sh --shrink TARGET [N]  replace auto-* of TARGET in the committed corpora by the up
#                                        to N files (default 40) of the working corpus that cover most;
#                                        then tests/fixtures/pack.sh --from build-fuzz/fixtures fuzz
# The working corpora stay in build-fuzz/corpus, findings in build-fuzz/findings. docs/fuzzing.md says
# what each target promises. Needs clang with its sanitizers (Debian: clang libclang-rt-14-dev).
set -euo pipefail
cd "$(dirname "$0")/.."

NBYTES_MAX=25000 # of one committed corpus
declare -A nbytes_max=([checkpoint]=12288 [config]=2048 [json]=4096 [machine]=2048 [manifest]=4096 [pickle]=8192 [plot]=2048 [pt]=16384
  [run_state]=4096 [safetensors]=8192 [texts]=4096 [tokenizer]=12288 [wordpiece]=4096)

build() {
  cmake --preset fuzz >/dev/null
  cmake --build --preset fuzz -- -k 0 >build-fuzz/build.log || { cat build-fuzz/build.log; exit 1; }
}

fuzz() { # target, seconds
  local target=$1 work=build-fuzz/corpus/$1 findings=build-fuzz/findings/$1
  mkdir -p "$work" "$findings" "build-fuzz/seeds/$target"
  echo "== $target: $2 s, log in build-fuzz/$target.log"
  UBSAN_OPTIONS=print_stacktrace=1 nice -n 10 "build-fuzz/fuzz_$target" -max_total_time="$2" \
    -max_len="${nbytes_max[$target]}" -timeout=10 -rss_limit_mb=1024 -malloc_limit_mb=256 \
    -use_value_profile=1 -print_final_stats=1 -artifact_prefix="$findings/" \
    "$work" "build-fuzz/fixtures/fuzz/$target" "build-fuzz/seeds/$target" >"build-fuzz/$target.log" 2>&1 || {
    grep -aE 'ERROR:|runtime error:|broken promise:|Test unit written' "build-fuzz/$target.log"
    return 1
  }
  tail -n 60 "build-fuzz/$target.log" | grep -aE '^stat::(number_of_exec|new_units|peak_rss)'
}

shrink() { # target, files
  local kept=build-fuzz/kept/$1 out=build-fuzz/fixtures/fuzz/$1
  local small=build-fuzz/small/$1 size=1000c
  [ "$1" = machine ] && size=1500c
  [ "$1" = pt ] && size=2500c
  rm -rf "$kept" "$small" && mkdir -p "$kept" "$small" "$out"
  find "$out" "build-fuzz/corpus/$1" "build-fuzz/seeds/$1" -type f -size "-$size" \
    -exec cp -t "$small" {} +
  find "$out" -name 'auto-*' -delete
  nice -n 10 "build-fuzz/fuzz_$1" -set_cover_merge=1 "$kept" "$small" 2>&1 | grep -a 'MERGE-OUTER.*new files'
  # set_cover_merge adds files in order of what they cover
  local nbytes=0 name
  for name in $(ls -tr "$kept" | head -n "$2"); do
    nbytes=$((nbytes + $(stat -c %s "$kept/$name")))
    [ "$nbytes" -le "$NBYTES_MAX" ] && cp "$kept/$name" "$out/auto-${name:0:12}"
  done
  du -sb "$out"
}

cmake -DTO=build-fuzz/fixtures -P tests/fixtures/unpack.cmake
if [ "${1:-}" = --shrink ]; then
  shrink "$2" "${3:-40}"
  exit
fi
build
python3 tests/fuzz/seeds.py build-fuzz/seeds
if [ $# -gt 0 ]; then
  fuzz "$1" "${2:-300}"
else
  failed=0
  for source in tests/fuzz/fuzz_*.c; do
    name=$(basename "$source" .c)
    fuzz "${name#fuzz_}" 300 || failed=1
  done
  exit $failed
fi
