#!/usr/bin/env bash
# The whole product of test_lamb: every precision with every number of ranks and stage.
set -euo pipefail
CZ_LAMB_ALL=1 CK_DEFAULT_TIMEOUT=1800 CK_TIMEOUT_MULTIPLIER=1 exec "$1/tests/engine/test_lamb"
