#!/usr/bin/env bash
# Claim: TensorBoard reads --tensorboard's curves, and after a resume none of the points past the
# checkpoint. Needs the peers' environment (CZ_PEERS); skipped without it.
set -euo pipefail
python=${CZ_PEERS:-}/bin/python
if [ -z "${CZ_PEERS:-}" ] || ! "$python" -c 'import tensorboard' 2>/dev/null; then
  echo "skipped: CZ_PEERS names no environment with tensorboard"
  exit 77
fi
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
CZ_TEST_METRICS_DIR=$dir "$1/tests/tools/test_metrics"
"$python" - "$dir" <<'PY'
import sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
acc = EventAccumulator(sys.argv[1])
acc.Reload()
tags = sorted(acc.Tags()["scalars"])
assert tags == ["eval/accuracy", "eval/loss", "eval/macro_f1", "eval/weighted_f1", "train/loss",
                "train/lr"], tags
assert [e.step for e in acc.Scalars("train/loss")] == [1, 2, 3, 4, 5]
assert [e.step for e in acc.Scalars("eval/loss")] == [5], "a point past the checkpoint"
assert abs(acc.Scalars("train/lr")[0].value - 5e-5) < 1e-11
print("read by tensorboard")
PY
