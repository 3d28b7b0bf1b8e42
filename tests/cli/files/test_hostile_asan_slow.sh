#!/usr/bin/env bash
# Claim: the hostile inputs of test_hostile.c make AddressSanitizer and UndefinedBehaviorSanitizer report
# nothing: no bad access, no overflow, no leak. It builds the two commands and the test in build-asan.
set -euo pipefail
cd "$(dirname "$0")/../../.."
if grep -q '^CZ_SANITIZE:BOOL=ON' "$1/CMakeCache.txt"; then
  echo "skipped: cli.test_hostile of this build has the sanitizers already"
  exit 77
fi
# as this build, so that a machine without CUDA or MPI needs neither
mapfile -t same < <(grep -E '^CZ_(CUDA|MPI):' "$1/CMakeCache.txt" | sed 's/^/-D/')
cmake --preset asan "${same[@]}" >"$1/hostile-asan.log" 2>&1 || { cat "$1/hostile-asan.log" >&2; exit 1; }
cmake --build --preset asan --target tool_czero tool_zero_to_fp32 cli.test_hostile >"$1/hostile-asan.log" 2>&1 ||
  { tail -50 "$1/hostile-asan.log" >&2; exit 1; }
build-asan/tests/cli/test_hostile
