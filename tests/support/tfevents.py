"""Event files as TensorBoard reads them, without TensorBoard: the calls of its EventAccumulator that the tests need.
Written from the format alone (TFRecord framing with masked CRC-32C, protocol buffers), so that it does not share a
mistake with formats/tfevents.c. Where TensorBoard is installed the tests read with both."""
import pathlib
import struct
from collections import namedtuple

Scalar = namedtuple("Scalar", "step value")


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def check(data, masked):
    crc = crc32c(data)
    assert ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF == masked, "wrong checksum"


def records(data):
    at = 0
    while at < len(data):
        nbytes, header_crc = struct.unpack_from("<QI", data, at)
        check(data[at:at + 8], header_crc)
        body = data[at + 12:at + 12 + nbytes]
        check(body, struct.unpack_from("<I", data, at + 12 + nbytes)[0])
        yield body
        at += 16 + nbytes


def varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 0x80:
            return value, at


def fields(data):
    """(number, value) of each field of a message: int, bytes, or the bytes of a fixed-size number."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        wire = key & 7
        if wire == 0:
            value, at = varint(data, at)
        else:
            nbytes, at = varint(data, at) if wire == 2 else ({1: 8, 5: 4}[wire], at)
            value, at = data[at:at + nbytes], at + nbytes
        yield key >> 3, value


class EventAccumulator:
    def __init__(self, path):
        path = pathlib.Path(path)
        self.files = sorted(path.glob("*tfevents*")) if path.is_dir() else [path]
        self.scalars = {}

    def Reload(self):
        self.scalars = {}
        for file in self.files:
            for record in records(file.read_bytes()):
                self.add(dict(fields(record)))

    def add(self, event):
        step = event.get(2, 0)
        if dict(fields(event.get(7, b""))).get(1) == 1:  # a session starts: later points of older ones are void
            self.scalars = {tag: [p for p in points if p.step < step] for tag, points in self.scalars.items()}
        for number, value in fields(event.get(5, b"")):
            if number == 1:
                point = dict(fields(value))
                scalar = Scalar(step, struct.unpack("<f", point[2])[0])
                self.scalars.setdefault(point[1].decode(), []).append(scalar)

    def Tags(self):
        return {"scalars": [tag for tag, points in self.scalars.items() if points]}

    def Scalars(self, tag):
        return self.scalars[tag]


def accumulators(path):
    """What both readers found, or ours alone."""
    found = [EventAccumulator(path)]
    try:
        from tensorboard.backend.event_processing import event_accumulator
        found.append(event_accumulator.EventAccumulator(str(path)))
    except ImportError:
        pass
    for acc in found:
        acc.Reload()
    return found
