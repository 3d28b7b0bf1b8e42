#!/usr/bin/env bash
# Claim: TensorBoard reads --tensorboard's curves, and after a resume none of the points past the
# checkpoint. Reads with tests/support/tfevents.py, and with TensorBoard itself where CZ_PEERS names the
# environment of scripts/peers.sh.
set -euo pipefail
python=python3
[ -z "${CZ_PEERS:-}" ] || python=$CZ_PEERS/bin/python
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
CZ_TEST_METRICS_DIR=$dir "$1/tests/cli/test_metrics"
PYTHONPATH=tests/support PYTHONDONTWRITEBYTECODE=1 "$python" - "$dir" <<'PY'
import sys
from tfevents import accumulators
readers = accumulators(sys.argv[1])
for acc in readers:
    tags = sorted(acc.Tags()["scalars"])
    assert tags == ["eval/accuracy", "eval/loss", "eval/macro_f1", "eval/train_accuracy", "eval/train_loss",
                    "eval/weighted_f1", "train/loss", "train/lr"], tags
    assert [e.step for e in acc.Scalars("train/loss")] == [1, 2, 3, 4, 5]
    assert [e.step for e in acc.Scalars("eval/loss")] == [5], "a point past the checkpoint"
    assert abs(acc.Scalars("train/lr")[0].value - 5e-5) < 1e-11
print("read by", " and ".join(type(acc).__module__.split(".")[0] for acc in readers))
PY
