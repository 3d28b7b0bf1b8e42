#!/usr/bin/env python3
"""docs/finetune.md with its Python: PEFT and transformers load the adapter and write the answer that
czero generate writes.

    $(scripts/peers.sh) tests/interop/chat/finetune_check.py BUILD
"""

import pathlib
import subprocess
import sys

root = pathlib.Path(__file__).resolve().parents[3]
sys.exit(subprocess.run(["bash", str(root / "tests/cli/chat/test_finetune.sh"), sys.argv[1], sys.executable]).returncode)
