#!/usr/bin/env bash
# Claim: the Python module gives the library's results as numpy arrays (check_module.py says which). It runs
# with the build folder's libczero.so, and with the first Python here that has numpy.
set -euo pipefail
build=$1
cd "$(dirname "$0")/../.."
if grep -qE 'CZ_(SANITIZE|TSAN):BOOL=ON' "$build/CMakeCache.txt"; then
  echo "skipped: the sanitizers' run-time libraries must be a program's first"
  exit 77
fi
for python in python3 /usr/bin/python3; do
  if "$python" -c 'import numpy' 2>/dev/null; then
    export CZERO_LIBRARY=$build/libczero.so PYTHONPATH=$PWD/python PYTHONDONTWRITEBYTECODE=1
    exec "$python" tests/python/check_module.py --czero "$build/czero" --fixtures "$build/fixtures"
  fi
done
echo "skipped: no python3 with numpy (Debian: apt install python3-numpy)"
exit 77
