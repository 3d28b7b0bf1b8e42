#!/usr/bin/env bash
# Build and run the default tests (all without the label "slow"): at most fifteen minutes on two cores, plus the build.
#   scripts/test.sh            release build
#   scripts/test.sh asan       with AddressSanitizer and UndefinedBehaviorSanitizer
#   scripts/test.sh tsan -R '^(comm|zero)[.]|engine.test_(resume|save)'   with ThreadSanitizer (no OpenMP),
#                              for code with several ranks or threads
#   scripts/test.sh release -L slow     the long tests; further arguments are passed to ctest
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:-release}
shift || true
scripts/build.sh "$preset"
build=build
[ "$preset" = release ] || build=build-$preset
# Most tests are one thread, or wait for disks and processes: as many at a time as there are cores. At
# most four, as some take a gigabyte, and all cores, for themselves.
jobs=$(nproc)
select=(-LE 'slow|gpu' -j $((jobs < 4 ? jobs : 4)))
[ $# -gt 0 ] && select=("$@") # one at a time, unless they say -j
# Signals as in a terminal: a shell's background jobs ignore SIGINT, and so would what the tests start.
exec env --default-signal=HUP,INT,QUIT ctest --test-dir "$build" --output-on-failure --no-tests=error "${select[@]}"
