#!/usr/bin/env bash
# test_train_batch with the whole product of models, precisions, tiers, stages and recomputation.
set -euo pipefail
CZ_TRAIN_BATCH_ALL=1 CK_DEFAULT_TIMEOUT=1800 CK_TIMEOUT_MULTIPLIER=1 exec "$1/tests/engine/test_train_batch"
