#!/usr/bin/env bash
# Claim: configs written for trainers train as they are (test_trainer_configs.py).
set -euo pipefail
build=$(cd "$1" && pwd)
exec python3 "$(dirname "$0")/test_trainer_configs.py" "$build/czero" "$build/fixtures"
