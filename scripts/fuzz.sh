#!/usr/bin/env bash
# Fuzz the readers with clang's libFuzzer.
#   scripts/fuzz.sh [TARGET [SECONDS]]      one target (default: all, one after the other; 300 s each) with
#                                           AddressSanitizer and UndefinedBehaviorSanitizer
#   scripts/fuzz.sh --hours N [TARGET...]   a campaign over all targets, or these, by turns: in each turn the fast
#                                           form (no AddressSanitizer, no watch on comparisons), the other form from
#                                           what that found, then only the inputs that still add coverage stay. A
#                                           table at the end, also after Ctrl-C; exit code 1: there are findings
#   scripts/fuzz.sh --shrink TARGET [N]     replace auto-* of TARGET in the committed corpora by the up
#                                           to N files (default 40) of the working corpus that cover most;
#                                           then tests/fixtures/pack.sh --from build-fuzz/fixtures fuzz
# The working corpora stay in build-fuzz/corpus, findings in build-fuzz/findings. docs/fuzzing.md says
# what each target promises. Needs clang with its sanitizers (Debian: clang libclang-rt-14-dev).
set -euo pipefail
cd "$(dirname "$0")/.."

NBYTES_MAX=25000 # of one committed corpus
declare -A nbytes_max=([adapter]=16384 [bpe]=4096 [chat]=65536 [checkpoint]=12288 [config]=2048 [index]=4096 [jinja]=262144 [json]=4096 [latest]=256 [machine]=16384
  [manifest]=4096 [model]=4096 [onebit]=8192 [pickle]=8192 [pieces]=9216 [plot]=2048 [pt]=16384 [run_state]=4096 [safetensors]=8192
  [texts]=4096 [tokenizer]=12288 [tokens]=4096 [wordpiece]=4096)

declare -A seconds_max=([chat]=120 [jinja]=60) # of one input: a template may take all its steps, and a row renders it often

build() { # preset
  cmake --preset "$1" >/dev/null
  cmake --build --preset "$1" -- -k 0 >"build-$1/build.log" || { cat "build-$1/build.log"; exit 1; }
}

# A finding ends the run; its log then says which, and the input is in build-fuzz/findings.
fuzz() { # preset, target, seconds, nbytes_max, options...
  local preset=$1 target=$2 seconds=$3 len=$4 work=build-fuzz/corpus/$2 log=build-fuzz/$2.log
  mkdir -p "$work" "build-fuzz/findings/$target" "build-fuzz/seeds/$target" "build-fuzz/fixtures/fuzz/$target"
  UBSAN_OPTIONS=print_stacktrace=1 nice -n 10 "build-$preset/fuzz_$target" -max_total_time="$seconds" -max_len="$len" \
    -timeout="${seconds_max[$target]:-20}" -rss_limit_mb=1024 -malloc_limit_mb=256 -print_final_stats=1 "${@:5}" \
    -artifact_prefix="build-fuzz/findings/$target/" "$work" "build-fuzz/fixtures/fuzz/$target" \
    "build-fuzz/seeds/$target" >"$log" 2>&1 && return
  grep -aE 'ERROR:|runtime error:|broken promise:|Test unit written' "$log"
  return 1
}

one() { # target, seconds
  echo "== $1: $2 s, log in build-fuzz/$1.log"
  fuzz fuzz "$1" "$2" "${nbytes_max[$1]}" -use_value_profile=1 || return 1
  tail -n 60 "build-fuzz/$1.log" | grep -aE '^stat::(number_of_exec|new_units|peak_rss)'
}

count() { # target, form: one more line of the campaign, from the log of the last run
  local n
  n=$(grep -a '^stat::number_of_executed_units' "build-fuzz/$1.log" | awk '{ n += $2 } END { print n + 0 }')
  printf '%s\t%s\t%s\n' "$1" "$2" "$n" >>build-fuzz/campaign.tsv
}

# All inputs once more with AddressSanitizer; those that add nothing go. The corpus is replaced at the very end.
minimise() { # target
  local work=build-fuzz/corpus/$1 kept=build-fuzz/kept/$1
  rm -rf "$kept" && mkdir -p "$kept"
  printf '%s\tasan\t%s\n' "$1" "$(find "$work" -type f | wc -l)" >>build-fuzz/campaign.tsv
  nice -n 10 "build-fuzz/fuzz_$1" -merge=1 -timeout="${seconds_max[$1]:-20}" -rss_limit_mb=1024 -max_len="${nbytes_max[$1]}" \
    -artifact_prefix="build-fuzz/findings/$1/" "$kept" "$work" >"build-fuzz/$1.log" 2>&1 || return 1
  [ -z "$stop" ] || return 0
  mv "$work" "$kept.old" && mv "$kept" "$work" && rm -rf "$kept.old"
}

turn() { # target, seconds: three quarters of them in the fast form
  local len=${nbytes_max[$1]}
  [ $((n_turns++ % 3)) -eq 2 ] || len=$((len < 512 ? len : 512)) # mostly short inputs: they are fast
  fuzz fuzz-fast "$1" $(($2 * 3 / 4)) "$len" -entropic=0 || true
  count "$1" fast
  [ -z "$stop" ] || return 0
  fuzz fuzz "$1" $(($2 / 4)) "${nbytes_max[$1]}" || true
  count "$1" asan
  [ -n "$stop" ] || minimise "$1" || true
}

findings() { # of this campaign, of one target or all
  find "build-fuzz/findings/${1-}" -type f -newer build-fuzz/campaign.begin \
    \( -name 'crash-*' -o -name 'leak-*' -o -name 'oom-*' -o -name 'timeout-*' \) 2>/dev/null
}

table() {
  local target
  printf '%-12s %15s %15s %8s %8s\n' target fast asan inputs findings
  for target in "$@"; do
    printf '%-12s %15d %15d %8d %8d\n' "$target" \
      "$(awk -v t="$target" '$1 == t && $2 == "fast" { n += $3 } END { print n + 0 }' build-fuzz/campaign.tsv)" \
      "$(awk -v t="$target" '$1 == t && $2 == "asan" { n += $3 } END { print n + 0 }' build-fuzz/campaign.tsv)" \
      "$(find "build-fuzz/corpus/$target" -type f 2>/dev/null | wc -l)" "$(findings "$target" | wc -l)"
  done
  awk '{ n += $3 } END { printf "%d executions\n", n }' build-fuzz/campaign.tsv
  findings
}

campaign() { # hours, targets...
  local end seconds target
  end=$(awk -v h="$1" -v now="$(date +%s)" 'BEGIN { printf "%d", now + 3600 * h }')
  shift
  seconds=$(((end - $(date +%s)) / $#))
  seconds=$((seconds > 300 ? 300 : seconds < 8 ? 8 : seconds))
  stop='' n_turns=0
  : >build-fuzz/campaign.tsv
  touch build-fuzz/campaign.begin
  trap 'stop=1' INT TERM
  while [ -z "$stop" ] && [ "$(date +%s)" -lt "$end" ]; do
    for target in "$@"; do
      [ -n "$stop" ] || [ "$(date +%s)" -ge "$end" ] || turn "$target" "$seconds"
    done
  done
  table "$@"
  [ -z "$(findings)" ]
}

shrink() { # target, files
  local kept=build-fuzz/kept/$1 out=build-fuzz/fixtures/fuzz/$1
  local small=build-fuzz/small/$1 size=1000c
  [ "$1" = machine ] && size=1500c
  [ "$1" = pt ] && size=2500c
  [[ $1 = onebit || $1 = tokens ]] && size=1800c
  rm -rf "$kept" "$small" && mkdir -p "$kept" "$small" "$out"
  find "$out" "build-fuzz/corpus/$1" "build-fuzz/seeds/$1" -type f -size "-$size" \
    -exec cp -nt "$small" {} +
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
mapfile -t all < <(printf '%s\n' "${!nbytes_max[@]}" | sort)
build fuzz
python3 tests/fuzz/seeds.py build-fuzz/seeds
if [ "${1:-}" = --hours ]; then
  build fuzz-fast
  hours=$2 && shift 2
  campaign "$hours" "${@:-${all[@]}}"
elif [ $# -gt 0 ]; then
  one "$1" "${2:-300}"
else
  failed=0
  for target in "${all[@]}"; do one "$target" 300 || failed=1; done
  exit $failed
fi
