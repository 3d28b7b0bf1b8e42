#!/usr/bin/env python3
"""Event files as TensorBoard reads them.

  tensorboard_check.py PATH... [--csv DIR]

PATH is an event file or a folder of them. Prints every point as `name,step,value`. With --csv, the
folder csv_monitor wrote in the same run (OUTPUT_PATH/JOB_NAME): both must hold the same points, the
values rounded to float there. Exit 0, or 1 when a file is damaged, empty or disagrees.
"""
import argparse
import csv
import pathlib
import struct
import sys


def fail(message):
    sys.exit(f"tensorboard_check: {message}")


def event_files(paths):
    for path in map(pathlib.Path, paths):
        files = sorted(path.glob("**/*tfevents*")) if path.is_dir() else [path]
        if not files or not all(file.is_file() for file in files):
            fail(f"{path}: no event files")
        yield from files


def record_count(path):
    """Records by their framing alone: length, its checksum, data, its checksum."""
    data, offset, count = path.read_bytes(), 0, 0
    while offset < len(data):
        if offset + 12 > len(data):
            fail(f"{path}: ends inside a record's header at byte {offset}")
        offset += 12 + struct.unpack_from("<Q", data, offset)[0] + 4
        if offset > len(data):
            fail(f"{path}: ends inside a record")
        count += 1
    return count


def points(path):
    """(name, step, value) of one file; TensorBoard's reader checks the checksums."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.util import tensor_util
    events = list(EventFileLoader(str(path)).Load())
    expected = record_count(path)
    if len(events) != expected:
        fail(f"{path}: TensorBoard reads {len(events)} of {expected} records")
    if not events or not events[0].file_version.startswith("brain.Event:"):
        fail(f"{path}: does not begin with a version record")
    for event in events:
        for value in event.summary.value:
            yield value.tag, event.step, float(tensor_util.make_ndarray(value.tensor))


def csv_points(folder):
    """{file name: {step: value}}; csv_monitor may repeat its header row after a resume."""
    found = {}
    for path in sorted(pathlib.Path(folder).glob("*.csv")):
        with open(path, newline="") as f:
            found[path.stem] = {int(row[0]): float(row[1]) for row in csv.reader(f) if row[0] != "step"}
    return found


def as_float32(value):
    return struct.unpack("f", struct.pack("f", value))[0]


def compare_with_csv(found, folder):
    theirs = {}
    for name, step, value in found:
        theirs.setdefault(name.replace("/", "_").replace(" ", "_"), {})[step] = value
    ours = {name: {step: as_float32(value) for step, value in curve.items()}
            for name, curve in csv_points(folder).items()}
    if ours.keys() != theirs.keys():
        fail(f"curves differ: csv {sorted(ours)}, event files {sorted(theirs)}")
    for name, curve in ours.items():
        if repr(sorted(curve.items())) != repr(sorted(theirs[name].items())):
            fail(f"{name}: csv and event files hold different points")
    print(f"# {len(ours)} curves agree with {folder}")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+")
    parser.add_argument("--csv", help="csv_monitor's folder of the same run")
    args = parser.parse_args()
    found = [point for path in event_files(args.paths) for point in points(path)]
    if not found:
        fail("no scalars")
    for name, step, value in found:
        print(f"{name},{step},{value!r}")
    if args.csv:
        compare_with_csv(found, args.csv)


if __name__ == "__main__":
    main()
