"""One form for pickled values, for every reader: czero through its shared library, or Python with
every class that is not torch's kept inert. For pickle_check.py."""

import builtins
import collections
import ctypes
import io
import pickle
import struct
import sys
import types

import torch

KINDS = "NONE BOOL INT LONG FLOAT STRING BYTES LIST TUPLE SET SIZE DICT TENSOR DTYPE GLOBAL OBJECT".split()

# ---- czero's trees --------------------------------------------------------------------------------


class Node(ctypes.Structure):
    pass


class Pair(ctypes.Structure):
    _fields_ = [("key", ctypes.POINTER(Node)), ("value", ctypes.POINTER(Node))]


class Dtype(ctypes.Structure):
    _fields_ = [("torch_name", ctypes.c_char_p), ("size", ctypes.c_size_t), ("has_base", ctypes.c_bool), ("base", ctypes.c_int)]


class Tensor(ctypes.Structure):
    _fields_ = [
        ("dtype", ctypes.POINTER(Dtype)),
        ("key", ctypes.c_char_p),
        ("storage_nbytes", ctypes.c_uint64),
        ("off", ctypes.c_uint64),
        ("numel", ctypes.c_uint64),
        ("ndim", ctypes.c_int),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("stride", ctypes.POINTER(ctypes.c_int64)),
        ("requires_grad", ctypes.c_bool),
        ("is_contiguous", ctypes.c_bool),
        ("is_parameter", ctypes.c_bool),
    ]


Node._fields_ = [
    ("kind", ctypes.c_int),
    ("boolean", ctypes.c_bool),
    ("integer", ctypes.c_int64),
    ("real", ctypes.c_double),
    ("text", ctypes.POINTER(ctypes.c_char)),
    ("n", ctypes.c_size_t),
    ("module", ctypes.c_char_p),
    ("name", ctypes.c_char_p),
    ("items", ctypes.POINTER(ctypes.POINTER(Node))),
    ("pairs", ctypes.POINTER(Pair)),
    ("n_pairs", ctypes.c_size_t),
    ("args", ctypes.POINTER(Node)),
    ("state", ctypes.POINTER(Node)),
    ("tensor", ctypes.POINTER(Tensor)),
    ("index", ctypes.c_void_p),
]


class TooLarge(Exception):
    """A tree whose shared values make it too large to compare as text."""


class Budget:
    def __init__(self):
        self.left = 200_000

    def spend(self):
        self.left -= 1
        if self.left < 0:
            raise TooLarge


def is_float(x):
    return ("float", struct.pack(">d", x))


def ours(p, budget):
    """A node as plain tuples, to be compared with theirs()."""
    if not p:
        return None
    budget.spend()
    node = p.contents
    kind = KINDS[node.kind]
    items = [ours(node.items[i], budget) for i in range(node.n)] if node.items else []
    pairs = [(ours(node.pairs[i].key, budget), ours(node.pairs[i].value, budget)) for i in range(node.n_pairs)]
    text = ctypes.string_at(node.text, node.n) if kind in ("STRING", "BYTES", "LONG") else b""
    module, name = (node.module or b"").decode(), (node.name or b"").decode()
    if kind == "NONE":
        return ("none",)
    if kind == "BOOL":
        return ("bool", node.boolean)
    if kind == "INT":
        return ("int", node.integer)
    if kind == "LONG":
        return ("int", int.from_bytes(text, "little", signed=True))
    if kind == "FLOAT":
        return is_float(node.real)
    if kind == "STRING":
        return ("str", text.decode("utf-8", "surrogatepass"))
    if kind == "BYTES":
        return ("bytes", text)
    if kind in ("LIST", "TUPLE", "SIZE"):
        return (kind.lower(), items)
    if kind == "SET":
        return (name, sorted({repr(i) for i in items}))
    if kind == "DICT":
        return ("dict", name, pairs, ours(node.args, budget), ours(node.state, budget))
    if kind == "DTYPE":
        return ("dtype", name)
    if kind == "GLOBAL":
        return ("global", module, name)
    if kind == "TENSOR":
        t = node.tensor.contents
        shape, stride = list(t.shape[: t.ndim]), list(t.stride[: t.ndim])
        dtype = t.dtype.contents.torch_name.decode()
        place = (t.off, t.storage_nbytes) if t.numel else None
        return ("tensor", dtype, shape, stride, place, t.requires_grad, t.is_parameter, ours(node.state, budget))
    if name == "" and module == "":
        return ("called", items, pairs, ours(node.args, budget))
    return ("object", module, name, ours(node.args, budget), items, pairs, ours(node.state, budget))


class Library:
    def __init__(self, path):
        self.c = c = ctypes.CDLL(str(path))
        c.cz_last_error.restype = ctypes.c_char_p
        c.pickle_root.restype = ctypes.POINTER(Node)
        c.pickle_root.argtypes = c.pickle_free.argtypes = [ctypes.c_void_p]
        c.pickle_parse.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_void_p]
        c.pickle_writer_create.restype = ctypes.c_void_p

    def error(self):
        return self.c.cz_last_error().decode(errors="replace")

    def tree(self, data):
        """Tuples, or None and a sentence."""
        out = ctypes.c_void_p()
        if self.c.pickle_parse(data, len(data), b"in", ctypes.byref(out)) != 0:
            return None, self.error()
        try:
            return ours(self.c.pickle_root(out), Budget()), ""
        finally:
            self.c.pickle_free(out)


# ---- Python's trees -------------------------------------------------------------------------------


class Meta(type):
    def __call__(cls, *args):
        made = cls.__new__(cls, *args)
        return made


class Inert(metaclass=Meta):
    """Any class: keeps what it is given."""

    where = ("", "")

    def __new__(cls, *args, **kwargs):
        made = object.__new__(cls)
        made.args, made.kwargs, made.items, made.pairs, made.state = args, kwargs, [], [], None
        return made

    def __setstate__(self, state):
        self.state = ("state", state)

    def __setitem__(self, key, value):
        self.pairs.append((key, value))

    def append(self, item):
        self.items.append(item)

    add = append

    def extend(self, items):
        self.items.extend(items)

    def __call__(self, *args):
        return Called(self, args)


class Called:
    def __init__(self, what, args):
        self.what, self.args = what, args


class Ordered(collections.OrderedDict):
    state = None

    def __setstate__(self, state):
        self.state = ("state", state)


class Default(collections.defaultdict):
    pass


class Count(dict):
    pass


def encode(text, encoding):
    """Python takes many spellings of the name; pickles have one."""
    if encoding != "latin1":
        raise ValueError(encoding)
    return text.encode("latin1")


KEPT = {
    ("collections", "OrderedDict"): Ordered,
    ("collections", "defaultdict"): Default,
    ("collections", "Counter"): Count,
    ("_codecs", "encode"): encode,
}


def find_class(module, name):
    if (module, name) in KEPT:
        return KEPT[module, name]
    if module in ("__builtin__", "builtins") and name in ("set", "frozenset", "list", "tuple", "dict", "bytes"):
        return getattr(builtins, name)
    if module == "torch" and (name == "Size" or isinstance(getattr(torch, name, None), torch.dtype)):
        return getattr(torch, name)
    if module == "torch.storage" and name == "UntypedStorage":
        return torch.UntypedStorage
    if module in ("torch._utils", "torch._tensor") and name.startswith("_rebuild"):
        return getattr(sys.modules[module], name)
    if (module, name) in (("torch", "Tensor"), ("torch.nn.parameter", "Parameter")):
        return torch.Tensor if name == "Tensor" else torch.nn.Parameter
    return Meta("Inert", (Inert,), {"where": (module, name)})


class Unpickler(pickle._Unpickler):  # in Python: a memo index of 2^32 costs it nothing
    def find_class(self, module, name):
        return find_class(module, name)


TORCH_MODULE = types.ModuleType("inert_pickle")
TORCH_MODULE.Unpickler = Unpickler
TORCH_MODULE.load = lambda f, **kw: Unpickler(f, **kw).load()


def attributes(x, budget):
    return theirs(dict(sorted(x.__dict__.items())), budget) if x.__dict__ else None


def theirs(x, budget):
    budget.spend()
    down = lambda y: theirs(y, budget)  # noqa: E731
    pairs = lambda d: [(down(k), down(v)) for k, v in d.items()]  # noqa: E731
    state = lambda s: None if s is None else down(s[1])  # noqa: E731
    if x is None:
        return ("none",)
    if isinstance(x, bool):
        return ("bool", x)
    if isinstance(x, int):
        return ("int", x)
    if isinstance(x, float):
        return is_float(x)
    if isinstance(x, str):
        return ("str", x)
    if isinstance(x, (bytes, bytearray)):
        return ("bytes", bytes(x))
    if isinstance(x, torch.Size):
        return ("size", [down(i) for i in x])
    if isinstance(x, (list, tuple)):
        return (type(x).__name__, [down(i) for i in x])
    if isinstance(x, (set, frozenset)):
        return (type(x).__name__, sorted({repr(down(i)) for i in x}))
    if isinstance(x, Ordered):
        return ("dict", "OrderedDict", pairs(x), None, state(x.state))
    if isinstance(x, Default):
        args = [] if x.default_factory is None else [down(x.default_factory)]
        return ("dict", "defaultdict", pairs(x), ("tuple", args), None)
    if isinstance(x, Count):
        return ("dict", "Counter", pairs(x), None, None)
    if isinstance(x, dict):
        return ("dict", "", pairs(x), None, None)
    if isinstance(x, torch.dtype):
        return ("dtype", str(x)[6:])
    if isinstance(x, torch.Tensor):
        place = (x.storage_offset(), x.untyped_storage().nbytes()) if x.numel() else None
        is_parameter = isinstance(x, torch.nn.Parameter)
        dtype = str(x.dtype)[6:]
        return ("tensor", dtype, list(x.shape), list(x.stride()), place, x.requires_grad, is_parameter, attributes(x, budget))
    if isinstance(x, Called):
        return ("called", [], [], ("tuple", [down(x.what), ("tuple", [down(a) for a in x.args])]))
    if isinstance(x, Inert):
        args = ("tuple", [down(a) for a in x.args])
        items, kept = [down(i) for i in x.items], {}
        for key, value in x.pairs:
            key = down(key)
            kept[repr(key)] = (kept.get(repr(key), (key,))[0], down(value))
        if x.kwargs or getattr(x, "with_kwargs", False):
            where = down(type(x))
            args = ("tuple", [where, args, down(x.kwargs)])
            return ("object", "copyreg", "__newobj_ex__", args, items, list(kept.values()), state(x.state))
        return ("object", *x.where, args, items, list(kept.values()), state(x.state))
    if isinstance(x, type) and issubclass(x, Inert):
        return ("global", *x.where)
    for where, kept in KEPT.items():
        if x is kept:
            return ("global", *where)
    return ("global", "?", getattr(x, "__name__", repr(x)))


def python_tree(data):
    return theirs(Unpickler(io.BytesIO(data)).load(), Budget())
