#!/usr/bin/env bash
# Build and run the default tests (everything but the label "slow").
#   scripts/test.sh            release build
#   scripts/test.sh asan       with AddressSanitizer and UndefinedBehaviorSanitizer
#   scripts/test.sh tsan -R '^(comm|zero)[.]|engine.test_(resume|save)'   with ThreadSanitizer (no OpenMP),
#                              where ranks and threads meet
#   scripts/test.sh release -L slow     the long ones; further arguments go to ctest
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:-release}
shift || true
scripts/build.sh "$preset"
build=build
[ "$preset" = release ] || build=build-$preset
select=(-LE 'slow|gpu')
[ $# -gt 0 ] && select=("$@")
# Tests use all cores themselves (OpenMP), so two at a time with one thread each would not be faster.
ctest --test-dir "$build" --output-on-failure --no-tests=error "${select[@]}"
