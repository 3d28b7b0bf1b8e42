#!/usr/bin/env bash
# Claim: TensorBoard and Python's csv read what the monitors write. Reads with tests/support/tfevents.py, and with
# TensorBoard itself where CZ_PEERS names the environment of scripts/peers.sh.
set -euo pipefail
python=python3
[ -z "${CZ_PEERS:-}" ] || python=$CZ_PEERS/bin/python
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
CZ_TEST_MONITOR_DIR=$dir "$1/tests/engine/test_monitor"
PYTHONPATH=tests/support PYTHONDONTWRITEBYTECODE=1 "$python" - "$dir" <<'PY'
import csv, sys
from tfevents import accumulators
readers = accumulators(sys.argv[1] + "/tb")
for acc in readers:
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
print("read by", " and ".join(type(acc).__module__.split(".")[0] for acc in readers), "and csv")
PY
