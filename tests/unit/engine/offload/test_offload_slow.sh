#!/usr/bin/env bash
# The whole product of test_offload: every stage, one to three ranks, fp32, bf16 and fp16 with
# skipped steps, AdamW and another optimizer, accumulation, groups and frozen parameters in turns,
# each with optimizer states and parameters on none, cpu and nvme: masters and states
# after 50 steps are the same bytes (some minutes).
set -euo pipefail
CZ_OFFLOAD_STEPS=50 CZ_OFFLOAD_ALL=1 CK_DEFAULT_TIMEOUT=1800 CK_TIMEOUT_MULTIPLIER=1 exec "$1/tests/engine/test_offload"
