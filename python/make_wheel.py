#!/usr/bin/env python3
"""Make the wheel of czero from installed files: scripts/package.sh calls this. Prints its path.

A wheel is a zip archive with a list of its files and their SHA-256 (RECORD); Python's own library
makes it. The programs of C are in czero/native with all libraries; the commands `czero` and
`zero_to_fp32` are scripts of five lines that execute them, so that no path of a Python's folder is
inside a program.
"""

import argparse
import base64
import hashlib
import os
import platform
import time
import zipfile
from pathlib import Path

COMMAND = '''#!python
import os, sys
from importlib.util import find_spec
program = os.path.join(os.path.dirname(find_spec("czero").origin), "native", "{name}")
os.execv(program, [program, *sys.argv[1:]])
'''

METADATA = '''Metadata-Version: 2.1
Name: czero
Version: {version}
Summary: DeepSpeed-compatible training of transformer models, in C
License: Apache-2.0, with libraries under the licenses in czero-{version}.dist-info/licenses
Requires-Python: >=3.8
Requires-Dist: numpy
Description-Content-Type: text/markdown

{readme}'''


class Wheel:
    def __init__(self, path: Path, dist_info: str) -> None:
        when = time.gmtime(max(int(os.environ.get("SOURCE_DATE_EPOCH", time.time())), 315532800))
        self.time = when[:6]
        self.dist_info = dist_info
        self.record = []
        self.zip = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9)

    def add(self, name: str, data: bytes, executable: bool = False) -> None:
        info = zipfile.ZipInfo(name, self.time)
        info.external_attr = (0o100755 if executable else 0o100644) << 16
        info.compress_type = zipfile.ZIP_DEFLATED
        self.zip.writestr(info, data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        self.record.append(f"{name},sha256={digest},{len(data)}")

    def add_folder(self, folder: Path, to: str, pattern: str = "*") -> None:
        for file in sorted(folder.rglob(pattern)):
            if file.is_file() and "__pycache__" not in file.parts:
                self.add(f"{to}/{file.relative_to(folder).as_posix()}", file.read_bytes(),
                         os.access(file, os.X_OK))

    def finish(self) -> None:
        name = f"{self.dist_info}/RECORD"
        self.record.append(f"{name},,")
        self.zip.writestr(zipfile.ZipInfo(name, self.time), "\n".join(self.record) + "\n")
        self.zip.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the wheel of czero.")
    parser.add_argument("--version", required=True)
    for name in ("native", "licenses", "share", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    args = parser.parse_args()
    here = Path(__file__).parent
    glibc = platform.libc_ver()[1].replace(".", "_")
    tag = f"py3-none-manylinux_{glibc}_x86_64"
    dist_info = f"czero-{args.version}.dist-info"
    data = f"czero-{args.version}.data"
    path = args.out / f"czero-{args.version}-{tag}.whl"

    wheel = Wheel(path, dist_info)
    wheel.add_folder(here / "czero", "czero", "*.py")
    wheel.add("czero/py.typed", b"")
    wheel.add_folder(args.native, "czero/native")
    for name in ("czero", "zero_to_fp32"):
        wheel.add(f"{data}/scripts/{name}", COMMAND.format(name=name).encode(), executable=True)
    for folder in ("man", "bash-completion", "zsh", "fish"):  # what is installed of these
        wheel.add_folder(args.share / folder, f"{data}/data/share/{folder}")
    wheel.add_folder(args.licenses, f"{dist_info}/licenses")
    wheel.add(f"{dist_info}/licenses/LICENSE", (here.parent / "LICENSE").read_bytes())
    readme = (here / "README.md").read_text()
    wheel.add(f"{dist_info}/METADATA", METADATA.format(version=args.version, readme=readme).encode())
    wheel.add(f"{dist_info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: czero\n"
              f"Root-Is-Purelib: false\nTag: {tag}\n".encode())
    wheel.finish()
    print(path)


if __name__ == "__main__":
    main()
