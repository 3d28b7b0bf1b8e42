#!/usr/bin/env bash
# Claim: TensorBoard and Python's csv read what the monitors write. Needs the peers' environment
# (CZ_PEERS); skipped without it.
set -euo pipefail
python=${CZ_PEERS:-}/bin/python
if [ -z "${CZ_PEERS:-}" ] || ! "$python" -c 'import tensorboard' 2>/dev/null; then
  echo "skipped: CZ_PEERS names no environment with tensorboard"
  exit 77
fi
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
CZ_TEST_MONITOR_DIR=$dir "$1/tests/engine/test_monitor"
"$python" - "$dir" <<'PY'
import csv, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
acc = EventAccumulator(sys.argv[1] + "/tb")
acc.Reload()
tags = acc.Tags()["scalars"]
assert sorted(tags) == ["Train/Samples/loss_scale", "Train/Samples/lr", "Train/Samples/train loss"], tags
lr = [(e.step, e.value) for e in acc.Scalars("Train/Samples/lr")]
assert [s for s, _ in lr] == [8, 16, 24, 32], lr
assert abs(lr[1][1] - 1e-4) < 1e-11 and abs(lr[2][1] - 0.3) < 1e-7, lr
assert [e.value for e in acc.Scalars("Train/Samples/loss_scale")] == [65536, 32768]
with open(sys.argv[1] + "/csv/Train_Samples_lr.csv", newline="") as f:
    rows = list(csv.reader(f))
assert rows == [["step", "lr"]] + [[str(s), repr(v)] for s, v in
                                   [(8, 0.0), (16, 1e-4), (24, 0.1 + 0.2), (32, 1e-5)]], rows
print("read by tensorboard and csv")
PY
