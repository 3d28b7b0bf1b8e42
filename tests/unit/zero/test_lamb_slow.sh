#!/usr/bin/env bash
# The whole product of test_lamb_ranks: every precision on one to four ranks at every stage, in each
# layout and with each kind of swap file.
set -euo pipefail
CZ_LAMB_ALL=1 CK_DEFAULT_TIMEOUT=1800 CK_TIMEOUT_MULTIPLIER=1 exec "$1/tests/zero/test_lamb_ranks"
