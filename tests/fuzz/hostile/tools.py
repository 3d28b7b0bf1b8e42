"""Writers of files that are wrong in one chosen place: pickles, zips, safetensors, manifests."""

import json
import pathlib
import pickle
import struct
import zipfile
import zlib

# ---- cases ----------------------------------------------------------------------------------------


class Corpus:
    """What the cases write: files below OUT/CASE, and the lines of the table."""

    def __init__(self, out):
        self.out = pathlib.Path(out)
        self.lines = []
        self.category = ""
        self.names = set()

    def put(self, path, data):
        path = self.out / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data)

    def case(self, name, idea, run, files=None, base="-", setup=""):
        """One input and the commands that read it. files: name in the run's folder → bytes or text."""
        name = f"{self.category}/{name}"
        assert name not in self.names, name
        self.names.add(name)
        steps = []
        for i, (path, data) in enumerate((files or {}).items()):
            stored = name + (f".{i}" if i else "")
            self.put(stored, data)
            steps.append(f"put {escaped(path)} {stored}")
        steps += [setup] if setup else []
        for command in [run] if isinstance(run, str) else run:
            self.lines.append((name, base, ";".join(steps), command, idea))


def escaped(path):
    """For the table: bytes that are not printable ASCII, and what divides steps, as \\xNN."""
    data = path.encode("utf-8", "surrogateescape")
    return "".join(chr(b) if 0x20 < b < 0x7F and b not in b"\\;" else f"\\x{b:02x}" for b in data)


# ---- pickles --------------------------------------------------------------------------------------


class Global:
    def __init__(self, module, name):
        self.module, self.name = module, name

    def __call__(self, *args):
        return Call(self, args)


class Call:
    """An instance: what is called with which arguments, and what it is given afterwards."""

    def __init__(self, func, args=(), state=None, is_new=False):
        self.func, self.args, self.state, self.is_new = func, args, state, is_new
        self.pairs, self.items = [], []

    def __setitem__(self, key, value):
        self.pairs.append((key, value))

    def append(self, value):
        self.items.append(value)

    def __setstate__(self, state):
        self.state = state


class Ordered(dict):
    state = None

    def __setstate__(self, state):
        self.state = state


class Storage:
    def __init__(self, pid):
        self.pid = pid


class Raw:
    """Opcodes in the place of a value."""

    def __init__(self, data):
        self.data = data


class Reader(pickle._Unpickler):
    """Torch's pickles as plain values; nothing that they name is imported."""

    dispatch = dict(pickle._Unpickler.dispatch)

    def find_class(self, module, name):
        return Ordered if (module, name) == ("collections", "OrderedDict") else Global(module, name)

    def persistent_load(self, pid):
        return Storage(pid)

    def load_newobj(self):
        args, cls = self.stack.pop(), self.stack.pop()
        self.append(Call(cls, args, is_new=True))

    dispatch[pickle.NEWOBJ[0]] = load_newobj


def text(value):
    data = value.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(data)) + data


def glob(module, name):
    return f"c{module}\n{name}\n".encode("utf-8", "surrogatepass")


def emit(v):
    """A value as opcodes of protocol 2 (bytes: of protocol 3)."""
    if isinstance(v, Raw):
        return v.data
    if v is None:
        return b"N"
    if isinstance(v, bool):
        return b"\x88" if v else b"\x89"
    if isinstance(v, int):
        if -(2**31) <= v < 2**31:
            return b"J" + struct.pack("<i", v)
        data = pickle.encode_long(v)
        return b"\x8a" + bytes([len(data)]) + data
    if isinstance(v, float):
        return b"G" + struct.pack(">d", v)
    if isinstance(v, str):
        return text(v)
    if isinstance(v, bytes):
        return b"B" + struct.pack("<I", len(v)) + v
    if isinstance(v, tuple):
        return b"(" + b"".join(map(emit, v)) + b"t"
    if isinstance(v, list):
        return b"](" + b"".join(map(emit, v)) + b"e"
    if isinstance(v, Ordered):
        data = glob("collections", "OrderedDict") + b")R(" + pairs(v.items()) + b"u"
        return data + (emit(v.state) + b"b" if v.state is not None else b"")
    if isinstance(v, dict):
        return b"}(" + pairs(v.items()) + b"u"
    if isinstance(v, Global):
        return glob(v.module, v.name)
    if isinstance(v, Storage):
        return emit(v.pid) + b"Q"
    assert isinstance(v, Call), v
    data = emit(v.func) + emit(v.args) + (b"\x81" if v.is_new else b"R")
    if v.items:
        data += b"(" + b"".join(map(emit, v.items)) + b"e"
    if v.pairs:
        data += b"(" + pairs(v.pairs) + b"u"
    return data + (emit(v.state) + b"b" if v.state is not None else b"")


def pairs(items):
    return b"".join(emit(k) + emit(v) for k, v in items)


def pickled(value):
    return b"\x80\x02" + emit(value) + b"."


def tensor(key="0", numel=12, off=0, shape=(3, 4), stride=(4, 1), kind="FloatStorage", hooks=None):
    storage = Storage(("storage", Global("torch", kind), key, "cpu", numel))
    hooks = Ordered() if hooks is None else hooks
    return Call(Global("torch._utils", "_rebuild_tensor_v2"), (storage, off, shape, stride, False, hooks))


def get(tree, path):
    for key in path:
        tree = getattr(tree, key[1:]) if isinstance(key, str) and key.startswith("@") else tree[key]
    return tree


def changed(tree, path, value):
    """The tree with another value at path: keys, indexes, and @args, @state, @pid of instances. A
    function gets the old value. Tuples are built anew, everything else is changed in place."""
    if not path:
        return value(tree) if callable(value) and not isinstance(value, Global) else value
    key, rest = path[0], path[1:]
    if isinstance(key, str) and key.startswith("@"):
        setattr(tree, key[1:], changed(getattr(tree, key[1:]), rest, value))
    elif isinstance(tree, tuple):
        return tree[:key] + (changed(tree[key], rest, value),) + tree[key + 1 :]
    elif isinstance(tree, dict):
        tree[key] = changed(tree.get(key) if not rest else tree[key], rest, value)
    else:
        tree[key] = changed(tree[key], rest, value)
    return tree


# ---- zips -----------------------------------------------------------------------------------------


class Record:
    """One file of an archive; every field of both headers can be another than the true one."""

    def __init__(self, name, data=b"", **fields):
        self.name = name if isinstance(name, bytes) else name.encode("utf-8", "surrogateescape")
        self.data, self.fields = data, fields


class Zip:
    """An archive as torch writes it, wrong where the keyword arguments say so."""

    def __init__(self, records, **end):
        self.records, self.end = records, end

    def bytes(self):
        out, directory = bytearray(self.end.get("prefix", b"")), bytearray()
        for r in self.records:
            f = r.fields
            crc, size = f.get("crc", zlib.crc32(r.data)), f.get("size", len(r.data))
            stored = f.get("stored", size)
            head = (f.get("need", 20), f.get("flags", 0), f.get("method", 0), 0, 0x21)
            off = f.get("off", len(out))
            name, extra = r.name, f.get("extra", b"")
            local_name, local_extra = f.get("local_name", name), f.get("local_extra", b"")
            if not f.get("absent"):
                out += f.get("local_signature", b"PK\x03\x04") + struct.pack("<5H", *f.get("local_head", head))
                out += struct.pack("<3I", *(x & 0xFFFFFFFF for x in (f.get("local_crc", crc), f.get("local_stored", stored), f.get("local_size", size))))
                out += struct.pack("<2H", len(local_name), f.get("local_extra_n", len(local_extra)))
                out += local_name + local_extra + r.data
            directory += f.get("signature", b"PK\x01\x02") + struct.pack("<H5H", f.get("made_by", 0), *head)
            directory += struct.pack("<3I", *(x & 0xFFFFFFFF for x in (crc, stored, size)))
            directory += struct.pack("<5H2I", f.get("name_n", len(name)), f.get("extra_n", len(extra)), f.get("comment_n", 0), f.get("disk", 0), 0, f.get("attributes", 0), off & 0xFFFFFFFF)
            directory += name + extra
        e = self.end
        dir_off, n = e.get("dir_off", len(out)), e.get("n", len(self.records))
        out += directory
        out += e.get("zip64", b"")
        out += e.get("signature", b"PK\x05\x06") + struct.pack("<4H", e.get("disk", 0), e.get("dir_disk", 0), e.get("n_here", n) & 0xFFFF, n & 0xFFFF)
        out += struct.pack("<2I", e.get("dir_size", len(directory)) & 0xFFFFFFFF, dir_off & 0xFFFFFFFF)
        comment = e.get("comment", b"")
        out += struct.pack("<H", e.get("comment_n", len(comment))) + comment + e.get("suffix", b"")
        return bytes(out)


FLOATS = struct.pack("<12f", *[i / 4 for i in range(12)])


def archive(root=None, data=FLOATS, name="x", records=None, more=(), **end):
    """x.pt: a pickle and its storages. records: further fields by the record's short name."""
    fields = records or {}
    root = {"w": tensor()} if root is None else root
    plain = [("data.pkl", root if isinstance(root, bytes) else pickled(root)), ("byteorder", b"little")]
    plain += [(f"data/{k}", v) for k, v in (data.items() if isinstance(data, dict) else [("0", data)])]
    plain += [("version", b"3\n")]
    made = [Record(f"{name}/{k}", fields.get(k, {}).pop("data", v), **fields.get(k, {})) for k, v in plain if fields.get(k, {}) is not None]
    return Zip(made + list(more), **end)


class Torch:
    """A .pt file of a fixture, to be written again with another tree or other records."""

    def __init__(self, path):
        with zipfile.ZipFile(path) as z:
            self.records = {i.filename: z.read(i) for i in z.infolist()}
        self.top = next(iter(self.records)).split("/")[0]
        import io

        self.tree = Reader(io.BytesIO(self.records[f"{self.top}/data.pkl"])).load()

    def bytes(self):
        records = dict(self.records)
        records[f"{self.top}/data.pkl"] = pickled(self.tree)
        return Zip([Record(name, data) for name, data in records.items()]).bytes()


# ---- safetensors ----------------------------------------------------------------------------------


def safetensors(header, data=b"", length=None, pad=True):
    raw = header if isinstance(header, bytes) else (header if isinstance(header, str) else json.dumps(header, separators=(",", ":"))).encode("utf-8", "surrogatepass")
    if pad:
        raw += b" " * (-len(raw) % 8)
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def weights(tensors):
    """{name: shape} → a sound file with small fp32 values that compress well."""
    header, data = {}, b""
    for name, shape in tensors.items():
        numel = 1
        for d in shape:
            numel *= d
        values = [1.0 if "ln_" in name and name.endswith("weight") else (i % 13 - 6) / 64 for i in range(numel)]
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [len(data), len(data) + 4 * numel]}
        data += struct.pack(f"<{numel}f", *values)
    return header, data


# ---- manifests ------------------------------------------------------------------------------------


def seal(head):
    """docs/checkpoint-format.md: the checksum of all bytes before its own member."""
    head = head if isinstance(head, bytes) else head.encode()
    return head + f'"manifest_crc32": "{zlib.crc32(head):08x}"\n}}\n'.encode()


def manifest(value):
    head = json.dumps({k: v for k, v in value.items() if k != "manifest_crc32"}, indent=2, ensure_ascii=False)
    assert head.endswith("\n}")
    return seal(head[:-2] + ",\n  ")


def resealed(folder, name, data):
    """The manifest of `folder` after its file `name` became `data`."""
    value = json.loads((folder / "czero_manifest.json").read_text())
    for f in value["files"]:
        if f["name"] == name:
            f.update(nbytes=len(data), crc32=f"{zlib.crc32(data):08x}", tensors=f["tensors"] if not name.endswith(".json") else [])
    return manifest(value)
