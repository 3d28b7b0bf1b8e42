"""Files of formats: what the reference reader accepts czero accepts, with the same content, and what it refuses czero refuses.

  safetensors  listed headers, and random files with random damage, beside the safetensors package
  JSON         JSONTestSuite where --json-suite names its folder test_parsing; random texts beside Python's json
  .pt          random tensors of every type by torch, their extremes and sums beside inspect --sums
"""
import ctypes as c
import json
import math
import pathlib
import random
import struct
import tempfile

from . import outcome

AREA = "formats"
FLOATS = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
TYPES = FLOATS + ("bfloat16", "float16", "float32", "float64", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64")


# ---- JSON ------------------------------------------------------------------------------------------


class Json:
    """czero's parser, strict."""

    def __init__(self, tools):
        self.lib = c.CDLL(str(tools.build / "libczero_internal.so"))
        self.lib.cz_last_error.restype = c.c_char_p
        self.lib.json_free.argtypes = [c.c_void_p]

    def refusal(self, data):
        doc = c.c_void_p()
        if self.lib.json_parse(data, c.c_size_t(len(data)), b"f.json", 0, c.byref(doc)):
            return self.lib.cz_last_error().decode(errors="replace")
        self.lib.json_free(doc)
        return ""


def no_constant(name):
    raise ValueError(f"{name} is no JSON")


def unique(pairs):
    if len(dict(pairs)) != len(pairs):
        raise KeyError("a key that is there twice")
    return dict(pairs)


def python_refusal(data):
    try:
        json.loads(data.decode(), parse_constant=no_constant, object_pairs_hook=unique)
        return ""
    except (ValueError, KeyError, RecursionError) as failure:
        return str(failure)


def random_json(rng, depth=0):
    kind = rng.randrange(5 if depth > 4 else 7)
    if kind == 0:
        return rng.choice(["true", "false", "null"])
    if kind in (1, 2):
        return rng.choice(["0", "-0", "1", "12", "-7"]) + rng.choice(["", "", ".5", ".0"]) + rng.choice(["", "", "e3", "E-2", "e+0"])
    if kind in (3, 4):
        return '"' + "".join(rng.choice(["a", "é", "😀", "\\n", '\\"', "\\\\", "\\u00e9", "\\ud83d\\ude00", " ", "/", "\\/"])
                             for _ in range(rng.randrange(6))) + '"'
    space = lambda: rng.choice(["", "", " ", "\n\t", "\r"])
    if kind == 5:
        return "[" + space() + ("," + space()).join(random_json(rng, depth + 1) for _ in range(rng.randrange(4))) + space() + "]"
    return "{" + ",".join(f'{space()}"{i}{rng.choice("ab")}"{space()}:{space()}{random_json(rng, depth + 1)}'
                          for i in range(rng.randrange(4))) + space() + "}"


def damaged(rng, data):
    data = bytearray(data)
    for _ in range(rng.randrange(3)):
        at = rng.randrange(len(data) + 1)
        how = rng.randrange(3)
        if how == 0:
            data[at:at] = rng.choice([b",", b"]", b"}", b"[", b'"', b"\\", b"0", b".", b"-", b"e", b"\x00", b"\xff", b"\xef\xbb\xbf",
                                      b"\x0c", b"\x1f", b"//", b"'", b"NaN", b"1", b" ", b"\\u12", b"\\ud800", b"tru", b"+"])
        elif how == 1:
            del data[at:at + 1]
        else:
            del data[at:]
    return bytes(data)


def same_verdict(case, ours, theirs):
    if bool(ours) == bool(theirs):
        return outcome.agreed(AREA, case)
    if ours:
        return outcome.disagreed(AREA, case, f"czero refuses it: {ours}")
    return outcome.disagreed(AREA, case, f"czero accepts it; the reference: {theirs}")


def is_chosen(ours):
    """What RFC 8259 leaves to the reader and czero refuses."""
    return next((why for why in ("duplicate key", "\\u0000 is not supported in strings", "half of a surrogate pair",
                                 "levels of nesting") if why in ours), "")


def check_json(parser, seed):
    rng = random.Random(seed)
    data = damaged(rng, random_json(rng).encode())
    ours, theirs = parser.refusal(data), python_refusal(data)
    if is_chosen(ours) and not theirs:
        return outcome.refused(AREA, f"JSON {data!r}", is_chosen(ours))
    return same_verdict(f"JSON {data!r}", ours, theirs)


def json_suite(parser, folder):
    """y_ must be accepted, n_ refused, i_ either."""
    for path in sorted(pathlib.Path(folder).glob("*.json")):
        ours = parser.refusal(path.read_bytes())
        if path.name[0] == "i":
            yield outcome.refused(AREA, path.name, "left to the reader: " + ours.split(": ", 1)[-1]) if ours else \
                outcome.agreed(AREA, path.name)
        elif path.name[0] == "y" and is_chosen(ours):
            yield outcome.refused(AREA, path.name, is_chosen(ours))
        else:
            yield same_verdict(path.name, ours, "n_: must be refused" if path.name[0] == "n" else "")


# ---- safetensors -----------------------------------------------------------------------------------


def entry(dtype="F32", shape="[2]", offsets="[0,8]", more=""):
    return f'{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}{more}}}'


# (header, bytes of data): what the reference's own tests try, and what its sentences name.
LISTED = [(f'{{"a":{entry(**k)}}}', n) for k, n in (
    ({}, 8), ({}, 7), ({}, 9), (dict(shape="[1,2]"), 8), (dict(shape="[]", offsets="[0,4]"), 4), (dict(shape="[0]", offsets="[0,0]"), 0),
    (dict(shape="[3]"), 8), (dict(offsets="[8,0]"), 8), (dict(offsets="[1,9]"), 9), (dict(offsets="[-0,8]"), 8),
    (dict(offsets="[0.0,8]"), 8), (dict(offsets="[0,8e0]"), 8), (dict(offsets='["0",8]'), 8), (dict(offsets="[0,8,9]"), 8),
    (dict(offsets="[0]"), 8), (dict(offsets="null"), 8), (dict(shape="[-2]"), 8), (dict(shape="[2.0]"), 8), (dict(shape="2"), 8),
    (dict(shape="[-0]", offsets="[0,0]"), 0), (dict(dtype="f32"), 8), (dict(dtype="F33"), 8), (dict(dtype=""), 8),
    (dict(shape="[18446744073709551615,2]"), 8), (dict(shape="[18446744073709551616]"), 8),
    (dict(shape="[4294967296,4294967296]"), 8), (dict(offsets="[0,18446744073709551615]"), 8),
    (dict(dtype="F4", shape="[4]", offsets="[0,2]"), 2), (dict(dtype="F4", shape="[3]", offsets="[0,2]"), 2),
    (dict(dtype="F8_E8M0", shape="[3]", offsets="[0,3]"), 3), (dict(dtype="C64", shape="[1]"), 8),
    (dict(dtype="BOOL", shape="[8]"), 8), (dict(dtype="U64", shape="[1]"), 8), (dict(more=',"extra":1'), 8))] + [
    ("", 0), ("{}", 0), ("{}", 1), ("[]", 0), ("null", 0), (" {}", 0), ("\ufeff{}", 0), ("{} ", 0), ("{}\n", 0), ("{}\0", 0), ("{}x", 0),
    ("{", 0), ('{"a":3}', 0), ('{"a":{}}', 0), ('{"__metadata__":{}}', 0), ('{"__metadata__":{"a":"b"}}', 0),
    ('{"__metadata__":{"a":1}}', 0), ('{"__metadata__":[]}', 0), ('{"__metadata__":null}', 0), ('{"__metadata__":{"a":null}}', 0),
    (f'{{"":{entry()}}}', 8), (f'{{"a b\\n\\"é":{entry()}}}', 8), (f'{{"a":{entry()},"b":{entry(offsets="[8,16]")}}}', 16),
    (f'{{"b":{entry(offsets="[8,16]")},"a":{entry()}}}', 16), (f'{{"a":{entry()},"b":{entry(offsets="[9,17]")}}}', 17),
    (f'{{"a":{entry()},"b":{entry(offsets="[4,12]")}}}', 12), (f'{{"a":{entry()},"b":{entry()}}}', 8),
    (f'{{"a":{entry()},}}', 8), (f"{{'a':{entry()}}}", 8), (f'{{"a":{entry()} "b":{entry(offsets="[8,16]")}}}', 16)]


def random_safetensors(rng):
    import torch
    from safetensors.torch import save
    tensors = {}
    for i in range(rng.randrange(4)):
        dtype = getattr(torch, rng.choice([t for t in TYPES if "fnuz" not in t]))
        shape = [rng.randrange(4) for _ in range(rng.randrange(4))]
        tensors[f"t{i}"] = torch.randn(shape).to(dtype)
    data = save(tensors, {"format": "pt"} if rng.random() < 0.5 else None)
    n = struct.unpack("<Q", data[:8])[0]
    if rng.random() < 0.2:
        return data[:rng.randrange(len(data) + 1)]
    header = damaged(rng, data[8:8 + n])
    length = len(header) if rng.random() < 0.8 else rng.choice([n, 0, 1, 1 << 40, (1 << 64) - 1, 100_000_001])
    return struct.pack("<Q", length) + header + data[8 + n:]


def check_safetensors(tools, folder, case, data):
    import safetensors
    path = folder / "x.safetensors"
    path.write_bytes(data)
    theirs, theirs_names = "", []
    try:
        with safetensors.safe_open(path, "pt") as f:
            theirs_names = sorted(f.keys())
    except Exception as failure:
        theirs = str(failure) or type(failure).__name__
    done = tools.run("inspect", path, "--json")
    ours = outcome.sentence(done) if done.returncode else ""
    if is_chosen(ours) and not theirs:
        return outcome.refused(AREA, case, is_chosen(ours))
    if 'does not begin with "{"' in ours and not theirs:
        return outcome.refused(AREA, case, "the format's description asks for a header that begins with {, its reader does not")
    if not ours and not theirs:
        names = sorted(t["name"] for t in json.loads(done.stdout)["tensors"])
        if names != theirs_names:
            return outcome.disagreed(AREA, case, f"names {names}, not {theirs_names}")
    return same_verdict(case, ours, theirs)


# ---- .pt -------------------------------------------------------------------------------------------


def facts(tensor):
    import torch
    flat = tensor.flatten()
    if tensor.dtype.is_complex or tensor.numel() == 0:
        return None
    values = flat.to(torch.float64)
    good = values[values.isfinite()]
    return {"nonfinite": values.numel() - good.numel(), "min": good.min().item() if good.numel() else None,
            "max": good.max().item() if good.numel() else None, "mean": good.mean().item() if good.numel() else None}


def check_pt(tools, folder, seed):
    import torch
    rng = random.Random(seed)
    torch.manual_seed(seed)
    tensors = {}
    for name in rng.sample(TYPES, rng.randint(1, 5)):
        dtype = getattr(torch, name)
        shape = [rng.randrange(1, 9) for _ in range(rng.randrange(4))]
        if name in FLOATS and rng.random() < 0.7:
            t = torch.arange(256, dtype=torch.uint8).view(dtype)
        elif dtype.is_floating_point or dtype.is_complex:
            t = (torch.randn(shape) * 10 ** rng.uniform(-4, 4)).to(dtype)
        else:
            t = torch.randint(0, 2 if name == "bool" else 100, shape).to(dtype)
        if t.ndim > 1 and rng.random() < 0.4:
            t = t.transpose(0, 1)
        tensors[name] = t
    torch.save(tensors, folder / "x.pt")
    case = f".pt seed {seed}: {', '.join(tensors)}"
    done = tools.run("inspect", folder / "x.pt", "--sums", "--json")
    if done.returncode:
        return outcome.disagreed(AREA, case, outcome.sentence(done))
    shown = {name: node["$tensor"] for name, node in json.loads(done.stdout)["root"].items()}
    for name, t in tensors.items():
        got, want = shown.get(name), facts(t)
        if not got or got["dtype"] != name or got["shape"] != list(t.shape):
            return outcome.disagreed(AREA, case, f"{name} is shown as {got}")
        for key, value in (want or {}).items():
            close = got.get(key) == value or value is not None and math.isclose(got.get(key) or 0, value, rel_tol=1e-6, abs_tol=1e-9)
            if not close:
                return outcome.disagreed(AREA, case, f"{name}: {key} {got.get(key)}, not {value}")
    return outcome.agreed(AREA, case)


def run(tools, seed, n):
    parser = Json(tools)
    if tools.json_suite:
        yield from json_suite(parser, tools.json_suite)
    else:
        print("formats: no --json-suite FOLDER (test_parsing of JSONTestSuite): its files are not compared", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        for header, n_data in LISTED:
            data = header.encode()
            yield check_safetensors(tools, folder, f"safetensors {header!r} with {n_data} bytes",
                                    struct.pack("<Q", len(data)) + data + bytes(n_data))
        for i in range(n):
            if i % 3 == 0:
                yield check_json(parser, seed + i)
            elif i % 3 == 1:
                yield check_safetensors(tools, folder, f"safetensors seed {seed + i}", random_safetensors(random.Random(seed + i)))
            else:
                yield check_pt(tools, folder, seed + i)
