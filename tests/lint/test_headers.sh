#!/usr/bin/env bash
# Claim: every header that other modules may include compiles alone, as C11 and as C++17, without warnings.
set -uo pipefail
cd "$(dirname "$0")/../.."
failed=0
n=0
for header in $(find base device layout formats comm ops optim model data offload zero \
  checkpoint engine -name '*.h' ! -name '*_impl.h' ! -path '*/lab/*' ! -path '*/cuda/*' | sort); do
  n=$((n + 1))
  gcc -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -I. -Iinclude -fsyntax-only -x c "$header" || failed=1
  g++ -std=c++17 -Wall -Wextra -Werror -I. -Iinclude -fsyntax-only -x c++ "$header" || failed=1
done
echo "$n headers compiled alone"
exit $failed
