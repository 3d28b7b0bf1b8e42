#!/usr/bin/env bash
# Set up, configure and build. Usage: scripts/build.sh [preset, default release] [target, default all]
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:-release}
scripts/setup.sh
cmake --preset "$preset" >/tmp/czero-configure.$$ 2>&1 || {
  cat /tmp/czero-configure.$$ >&2
  exit 1
}
grep -E '^-- (CUDA|MPI)' /tmp/czero-configure.$$ || true
rm -f /tmp/czero-configure.$$
cmake --build --preset "$preset" --target "${2:-all}"
