"""The folder of the fixtures: build/fixtures, or the one that CZ_FIXTURES names. It is brought up to date first.
tests/fixtures/README.md says what it holds. What is changed there in a packed folder is packed again by
tests/fixtures/pack.sh; folders that are not packed are links into the tree."""
import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIXTURES = pathlib.Path(os.environ.get("CZ_FIXTURES", ROOT / "build" / "fixtures")).absolute()

subprocess.run(["cmake", f"-DTO={FIXTURES}", "-P", ROOT / "tests" / "fixtures" / "unpack.cmake"], check=True)
