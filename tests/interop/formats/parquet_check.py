#!/usr/bin/env python3
"""The rows of Parquet files, as czero's plug-in gives them, beside pyarrow's to_pylist().

    $(scripts/peers.sh) tests/interop/formats/parquet_check.py BUILD [--count N] [--seed S]

BUILD has libczero_internal.so and libczero_parquet.so (cmake -DCZ_ARROW_DIR=…/site-packages/pyarrow).
N random tables of texts, numbers, lists, structs, maps and dictionaries, in all compressions, pages and
row groups of odd sizes; then N damaged ones, which must end in a sentence. Ends with status 1 if
anything differs."""

import argparse
import ctypes
import json
import math
import os
import pathlib
import random
import sys
import tempfile

import pyarrow as pa
import pyarrow.parquet as pq

WORDS = ["", "a", "Zażółć", "漢字 😀", "line\nfeed\ttab \"quoted\" \\ \x01", "x" * 3000]


def random_type(rng, depth=0):
    kinds = ["string", "large_string", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float", "double", "bool", "binary", "dictionary"]
    if depth < 3:
        kinds += ["list", "struct", "map", "large_list"] * 2
    kind = rng.choice(kinds)
    if kind == "list":
        return pa.list_(random_type(rng, depth + 1))
    if kind == "large_list":
        return pa.large_list(random_type(rng, depth + 1))
    if kind == "map":
        return pa.map_(pa.string(), random_type(rng, depth + 1))
    if kind == "struct":
        return pa.struct([(f"f{i}", random_type(rng, depth + 1)) for i in range(rng.randint(1, 3))])
    if kind == "dictionary":
        return pa.dictionary(pa.int32(), pa.string()) if depth == 0 else pa.string()
    return {"string": pa.string(), "large_string": pa.large_string(), "float": pa.float32(), "double": pa.float64(), "bool": pa.bool_(), "binary": pa.binary()}.get(kind) or getattr(pa, kind)()


def random_value(rng, kind):
    if rng.random() < 0.15:
        return None
    if pa.types.is_dictionary(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return rng.choice(WORDS)
    if pa.types.is_binary(kind):
        return rng.choice([b"text", "é".encode(), b"\xff\x00", b""])
    if pa.types.is_boolean(kind):
        return rng.random() < 0.5
    if pa.types.is_integer(kind):
        bits = kind.bit_width - pa.types.is_signed_integer(kind)
        return rng.choice([0, 1, 2**bits - 1] + ([-(2**bits)] if pa.types.is_signed_integer(kind) else []))
    if pa.types.is_floating(kind):
        return rng.choice([0.0, -1.0, 0.5, 1e30, math.nan, math.inf, 3.0])
    if pa.types.is_map(kind):
        return [(f"k{i}", random_value(rng, kind.item_type)) for i in range(rng.randint(0, 3))]
    if pa.types.is_struct(kind):
        return {field.name: random_value(rng, field.type) for field in kind}
    return [random_value(rng, kind.value_type) for _ in range(rng.randint(0, 4))]


def as_json(value, kind):
    """what czero writes for a value of pyarrow's"""
    if value is None or isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return None
    if pa.types.is_float32(kind):
        return float(value)
    if pa.types.is_map(kind):
        return {k: as_json(v, kind.item_type) for k, v in value}
    if pa.types.is_struct(kind):
        return {field.name: as_json(value[field.name], field.type) for field in kind}
    if isinstance(value, list):
        return [as_json(v, kind.value_type) for v in value]
    return value


def near(a, b):
    """floats by their value in 32 bits: shorter texts stand for them"""
    if isinstance(a, float) and isinstance(b, (int, float)) and not isinstance(b, bool):
        return a == b or abs(a - b) <= 1e-7 * abs(a)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(near(a[k], b[k]) for k in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(near(x, y) for x, y in zip(a, b))
    return type(a) is type(b) and a == b


class Reader:
    def __init__(self, build):
        os.environ["CZERO_PARQUET_PLUGIN"] = str(build / "libczero_parquet.so")
        self.lib = ctypes.CDLL(str(build / "libczero_internal.so"))
        self.lib.cz_last_error.restype = ctypes.c_char_p

    def read(self, path):
        """the text, or None and the sentence"""
        fd = os.open(path, os.O_RDONLY)
        name = str(path).encode()  # lent until close
        stream, got, buffer, out = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.create_string_buffer(7777), b""
        st = self.lib.byte_stream_open(fd, name, ctypes.byref(stream))
        while st == 0:
            st = self.lib.byte_stream_read(stream, buffer, ctypes.c_size_t(len(buffer)), ctypes.byref(got))
            if st != 0 or got.value == 0:
                break
            out += buffer.raw[: got.value]
        sentence = None if st == 0 else self.lib.cz_last_error().decode()
        self.lib.byte_stream_close(stream)
        os.close(fd)
        return out, sentence


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    reader, rng, bad, n_rows, n_refused, n_lost = Reader(args.build), random.Random(args.seed), 0, 0, 0, 0
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "t.parquet"
        for case in range(args.count):
            schema = pa.schema([(f"c{i}", random_type(rng)) for i in range(rng.randint(1, 5))])
            rows = [{f.name: random_value(rng, f.type) for f in schema} for _ in range(rng.choice([0, 1, 7, 300, 2500]) if case % 20 == 0 else rng.randint(0, 40))]
            table = pa.Table.from_pylist(rows, schema)
            pq.write_table(table, path, compression=rng.choice(["none", "snappy", "gzip", "zstd", "brotli", "lz4"]), row_group_size=rng.choice([1, 7, 1000]),
                           use_dictionary=rng.random() < 0.5, data_page_size=rng.choice([64, 1 << 20]), data_page_version=rng.choice(["1.0", "2.0"]))
            try:  # Arrow 26 loses values of lists of lists of booleans
                is_whole = near(pq.ParquetFile(path).read().to_pylist(), table.to_pylist()) or "nan" in str(table.to_pylist())
            except pa.ArrowException:
                is_whole = False
            n_lost += not is_whole
            text, sentence = reader.read(path)
            expected = [{f.name: as_json(row[f.name], f.type) for f in schema} for row in table.to_pylist()]
            got = [json.loads(line) for line in text.decode().splitlines()] if sentence is None else None
            n_rows += len(expected)
            if is_whole and (got is None or not near(expected, got)):
                bad += 1
                print(f"table {case}: {sentence or 'other rows'}\n   {schema}")
                print(*[f"   {e}\n   {g}" for e, g in zip(expected, got or []) if not near(e, g)][:2], sep="\n")
            data = bytearray(path.read_bytes())
            for _ in range(rng.randint(1, 8)):
                data[rng.randrange(4, len(data) - 4)] = rng.randrange(256)
            path.write_bytes(data)
            text, sentence = reader.read(path)
            n_refused += sentence is not None
    print(f"seed {args.seed}: {args.count} tables, {n_rows} rows, {bad} differ, {n_lost} that pyarrow reads otherwise itself; {n_refused} of {args.count} damaged ones are refused, the others read")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
