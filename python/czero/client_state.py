"""Client state: what a program adds to a checkpoint, as DeepSpeed pickles it.

Saving takes values of the types below alone, so whatever is saved comes back equal; others are a
TypeError that names their place. Loading executes nothing: calls in the pickle become inert records,
and a table makes values of those that it knows. The rest stays an UnknownObject.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import decimal
import fractions
import io
import pathlib
import pickle
import sys
import types
import uuid
from typing import Any, Callable, Dict, List, Mapping, NoReturn, Set, Tuple

import numpy

from . import _library as lib

_DEPTH_MAX = 100
_KINDS = "biufcSUmM"  # of numpy's types

_TENSORS = ("float64", "float32", "float16", "bfloat16", "complex128", "complex64", "int64", "int32",
            "int16", "int8", "uint8", "bool")

_LEAVES = (type(None), bool, int, float, complex, str, bytes, bytearray, range, decimal.Decimal,
           fractions.Fraction, uuid.UUID, pathlib.PurePosixPath, pathlib.PureWindowsPath,
           pathlib.PosixPath, pathlib.WindowsPath, datetime.date, datetime.timedelta,
           datetime.timezone)
_SEQUENCES = (list, tuple, set, frozenset, collections.deque)
_DICTS = (dict, collections.OrderedDict, collections.Counter, collections.defaultdict)
_NAMESPACES = (argparse.Namespace, types.SimpleNamespace)
_FACTORIES = (int, float, str, bool, list, dict, set, tuple)


class UnknownObject:
    """An object of a class that is not created: its name, and what the file has of it."""

    def __init__(self, name: str, args: Any, items: List[Any], state: Any) -> None:
        self.name, self.args, self.items, self.state = name, args, items, state

    def __repr__(self) -> str:
        return f"<czero.UnknownObject {self.name} args={self.args!r} state={self.state!r}>"


def _class_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _torch_of(value: Any) -> Any:
    """The module torch, if the value can be of it."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and isinstance(
        value, (torch.Tensor, torch.Size, torch.dtype, torch.device)) else None


# ---- saving --------------------------------------------------------------------------------------


class _Checker:
    """Walks a value; the first that would not come back equal is a TypeError."""

    def __init__(self) -> None:
        self.inside: Set[int] = set()  # the containers around the value
        self.done: Set[int] = set()

    def refuse(self, path: str, why: str) -> NoReturn:
        raise TypeError(f"client_state{path[:200]}{'…' * (len(path) > 200)}: {why}")

    def check(self, value: Any, path: str = "") -> None:
        kind = type(value)
        if kind in _LEAVES:
            return
        if kind in (datetime.datetime, datetime.time):
            if value.tzinfo is not None and type(value.tzinfo) is not datetime.timezone:
                self.refuse(path, f"a time zone of {_class_name(type(value.tzinfo))} is not stored: "
                                  "use datetime.timezone")
        elif kind is numpy.ndarray or isinstance(value, numpy.generic):
            if value.dtype.kind not in _KINDS or value.dtype.metadata:
                self.refuse(path, f"an array of {value.dtype} is not stored: use a list")
        elif _torch_of(value):
            self.check_torch(value, path)
        else:
            self.check_container(value, kind, path)

    def check_torch(self, value: Any, path: str) -> None:
        torch = _torch_of(value)
        if not isinstance(value, torch.Tensor):
            return
        if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout != torch.strided:
            self.refuse(path, f"{_class_name(type(value))} of layout {value.layout} is not stored: "
                              "use a dense torch.Tensor")
        if str(value.dtype)[6:] not in _TENSORS or value.is_meta:
            self.refuse(path, f"a tensor of {value.dtype} on {value.device} is not stored")

    def check_container(self, value: Any, kind: type, path: str) -> None:
        if kind not in (*_SEQUENCES, *_DICTS, *_NAMESPACES):
            self.refuse(path, f"{_class_name(kind)} is not stored: use numbers, texts, lists, "
                              "dictionaries or arrays instead")
        if id(value) in self.inside:
            self.refuse(path, "contains itself")
        if len(self.inside) == _DEPTH_MAX:
            self.refuse(path, f"is nested deeper than {_DEPTH_MAX} containers")
        if id(value) in self.done:
            return
        self.inside.add(id(value))
        if kind in _SEQUENCES:
            for idx, item in enumerate(value):
                self.check(item, f"{path}[{idx}]")
        elif kind in _NAMESPACES:
            for name, item in vars(value).items():
                self.check(item, f"{path}.{name}")
        else:
            if kind is collections.defaultdict and value.default_factory not in (None, *_FACTORIES):
                self.refuse(path, f"a default of {value.default_factory!r} is not stored")
            for key, item in value.items():
                self.check(key, f"{path}, key {key!r}")
                self.check(item, f"{path}[{key!r}]")
        self.inside.discard(id(value))
        self.done.add(id(value))


class _Pickler(pickle.Pickler):
    """Tensors become calls, of which the library makes tensors of the checkpoint."""

    def reducer_override(self, value: Any) -> Any:
        torch = _torch_of(value)
        if torch is None or not isinstance(value, torch.Tensor):
            return NotImplemented
        whole = value.detach().resolve_conj().resolve_neg().cpu().contiguous()
        raw = whole.view(torch.int16) if value.dtype == torch.bfloat16 else whole
        name = str(value.dtype).partition(".")[2]
        return tensor, (name, tuple(value.shape), raw.numpy().tobytes())


def encode(client_state: Any) -> bytes:
    """A pickle for the library. TypeError: a value would not come back equal."""
    if not isinstance(client_state, Mapping):
        raise TypeError("client_state: a dictionary is needed, not "
                        f"{_class_name(type(client_state))}")
    state = dict(client_state)
    _Checker().check(state)
    out = io.BytesIO()
    try:
        _Pickler(out, protocol=2).dump(state)
    except Exception as error:
        raise TypeError(f"client_state: cannot be pickled: {error}") from error
    return out.getvalue()


# ---- loading -------------------------------------------------------------------------------------


class _Inert:
    """What a class or function of the pickle becomes: it keeps what it was called with."""

    name = ""

    def __new__(cls, *args: Any) -> "_Inert":
        self = object.__new__(cls)
        self.args, self.state = args, None  # type: ignore[attr-defined]
        self.listed, self.pairs = [], []  # type: ignore[attr-defined]
        return self

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def append(self, item: Any) -> None:
        self.listed.append(item)  # type: ignore[attr-defined]

    def extend(self, items: Any) -> None:
        self.listed.extend(items)  # type: ignore[attr-defined]

    def __setitem__(self, key: Any, value: Any) -> None:
        self.pairs.append((key, value))  # type: ignore[attr-defined]


_PYTHON_3 = {"__builtin__": "builtins", "copy_reg": "copyreg"}  # protocol 2 has Python 2's names


class _Unpickler(pickle.Unpickler):
    def __init__(self, raw: bytes) -> None:
        super().__init__(io.BytesIO(raw))
        self._made: Dict[str, type] = {}

    def find_class(self, module: str, name: str) -> Any:
        full = f"{_PYTHON_3.get(module, module)}.{name}"
        full = full.replace("numpy.core.", "numpy._core.").replace("builtins.xrange", "builtins.range")
        if full not in self._made:
            self._made[full] = type("_Inert", (_Inert,), {"name": full})
        return self._made[full]


def _dtype(args: Any, made: Any) -> numpy.dtype:
    name, state = args[0], made.state
    if state is None:
        return numpy.dtype(name)
    if state[3] is not None or state[2] is not None or numpy.dtype(name).kind not in _KINDS:
        raise ValueError("a structured dtype")
    if len(state) > 8 and numpy.dtype(name).kind in "mM":
        unit, factor = state[8][1][:2]
        name = f"{name}[{factor}{unit.decode()}]"
    return numpy.dtype(name).newbyteorder(state[1])


def _array(args: Any, made: Any) -> numpy.ndarray:
    _, shape, dtype, is_fortran, raw = made.state
    if args[0] != "numpy.ndarray" or dtype.kind not in _KINDS:
        raise ValueError("an array of objects, or of a subclass")
    if 0 in shape:
        return numpy.empty(shape, dtype)
    order: Any = "F" if is_fortran else "C"
    return numpy.frombuffer(raw, dtype).reshape(shape, order=order).copy(order="K")


def _scalar(args: Any, made: Any) -> Any:
    dtype, raw = args
    if dtype.kind not in _KINDS:
        raise ValueError("a scalar of objects")
    if dtype.itemsize == 0:
        return dtype.type()
    return numpy.frombuffer(raw, dtype)[0]


def _deque(args: Any, made: Any) -> Any:
    return collections.deque(made.items, *args[1:])


def _namespace(args: Any, made: Any) -> Any:
    result = argparse.Namespace() if made.name == "argparse.Namespace" else types.SimpleNamespace()
    vars(result).update(*args)
    vars(result).update(made.state or {})
    return result


def _uuid(args: Any, made: Any) -> uuid.UUID:
    return uuid.UUID(int=made.state["int"])


def tensor(dtype: str, shape: Tuple[int, ...], raw: bytes) -> Any:
    """A tensor where torch is installed, else an array (of bfloat16: its bits as uint16)."""
    torch = _torch()
    if torch is None:
        kind = {"bfloat16": "uint16", "bool": "bool_"}.get(dtype, dtype)
        return numpy.frombuffer(raw, numpy.dtype(kind)).reshape(shape).copy()
    if 0 in shape:
        return torch.empty(shape, dtype=getattr(torch, dtype))
    return torch.frombuffer(bytearray(raw), dtype=getattr(torch, dtype)).reshape(shape)


def _torch_call(args: Any, made: Any) -> Any:
    torch = _torch()
    return torch.Size(args[0]) if made.name == "torch.Size" else torch.device(*args)


def _torch() -> Any:
    try:
        import torch  # pylint: disable=import-outside-toplevel
    except ImportError:
        return None
    return torch


def _of(make: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    return lambda args, made: make(*args)


def _of_pairs(make: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    def filled(args: Any, made: Any) -> Any:
        result = make(*args)
        for key, value in made.pairs:
            result[key] = value
        return result
    return filled


def _latin1(text: str, encoding: str = "latin1") -> bytes:
    if encoding not in ("latin1", "latin-1"):
        raise ValueError(encoding)
    return text.encode("latin1")


def _bytes(text: str = "", encoding: str = "latin1") -> bytes:
    return text if isinstance(text, bytes) else _latin1(text, encoding)


def _of_items(make: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    def filled(args: Any, made: Any) -> Any:
        if args and not isinstance(args[0], (list, tuple, set, frozenset)):
            raise ValueError("a sequence that is not in the pickle")
        return make(*args)
    return filled


def _fraction(*args: Any) -> fractions.Fraction:
    if any(isinstance(arg, str) and set(arg) - set("0123456789-/") for arg in args):
        raise ValueError("a fraction with an exponent")
    return fractions.Fraction(*args)


def _factory(*args: Any) -> Any:
    if args and args[0] is not None and args[0] not in _FACTORIES:
        raise ValueError("an unknown default")
    return collections.defaultdict(*args)


_MAKERS: Dict[str, Callable[[Any, Any], Any]] = {
    "_codecs.encode": _of(_latin1),
    "builtins.bytes": _of(_bytes), "builtins.bytearray": _of(lambda *args: bytearray(_bytes(*args))),
    "builtins.complex": _of(complex), "builtins.range": _of(range),
    "builtins.set": _of_items(set), "builtins.frozenset": _of_items(frozenset),
    "builtins.list": _of_items(list), "builtins.tuple": _of_items(tuple),
    "collections.OrderedDict": _of_pairs(collections.OrderedDict),
    "collections.Counter": _of_pairs(collections.Counter),
    "collections.defaultdict": _of_pairs(_factory), "collections.deque": _deque,
    "datetime.datetime": _of(datetime.datetime), "datetime.date": _of(datetime.date),
    "datetime.time": _of(datetime.time), "datetime.timedelta": _of(datetime.timedelta),
    "datetime.timezone": _of(datetime.timezone), "decimal.Decimal": _of(decimal.Decimal),
    "fractions.Fraction": _of(_fraction), "uuid.UUID": _uuid,
    "argparse.Namespace": _namespace, "types.SimpleNamespace": _namespace,
    "numpy.dtype": _dtype, "numpy._core.multiarray._reconstruct": _array,
    "numpy._core.multiarray.scalar": _scalar,
    "czero.client_state.tensor": _of(tensor),
    "torch.Size": _torch_call, "torch.device": _torch_call,
}
for _name in ("PurePosixPath", "PureWindowsPath", "PosixPath", "WindowsPath"):
    for _module in ("pathlib", "pathlib._local"):
        _MAKERS[f"{_module}.{_name}"] = _of(getattr(pathlib, _name))
_CLASSES = {f"builtins.{kind.__name__}": kind for kind in _FACTORIES}


class _Maker:
    """Makes values of inert records, each once: what is shared stays shared."""

    def __init__(self) -> None:
        self.made: Dict[int, Any] = {}
        self.unknown: List[Tuple[str, str]] = []

    def make(self, value: Any, path: str, depth: int = 0) -> Any:
        if isinstance(value, type) and issubclass(value, _Inert):
            return self.make_global(value.name, path)
        if type(value) not in (list, tuple, dict) and not isinstance(value, _Inert):
            return value
        if id(value) not in self.made:
            self.made[id(value)] = self.make_new(value, path, depth + 1)
        return self.made[id(value)]

    def make_new(self, value: Any, path: str, depth: int) -> Any:
        if depth > 2 * _DEPTH_MAX:
            return self.unmade("a container that is nested too deeply", path, (), [], None)
        if isinstance(value, _Inert):
            return self.make_called(value, path, depth)
        if isinstance(value, dict):
            pairs = [(self.make(key, path, depth), item) for key, item in value.items()]
            made = [(key, self.make(item, f"{path}[{key!r}]", depth)) for key, item in pairs]
            try:
                return dict(made)
            except TypeError:  # a key that cannot be hashed
                return self.unmade("dict", path, (), made, None)
        return type(value)(self.make(item, f"{path}[{idx}]", depth)
                           for idx, item in enumerate(value))

    def unmade(self, name: str, path: str, args: Any, items: Any, state: Any) -> UnknownObject:
        self.unknown.append((path, name))
        return UnknownObject(name, args, items, state)

    def make_global(self, name: str, path: str) -> Any:
        if name in _CLASSES:
            return _CLASSES[name]
        torch = _torch() if name.startswith("torch.") else None
        if torch is not None and isinstance(getattr(torch, name[6:], None), torch.dtype):
            return getattr(torch, name[6:])
        return self.unmade(name, path, (), [], None)

    def make_called(self, value: Any, path: str, depth: int) -> Any:
        known = len(self.unknown)
        args = tuple(self.make_argument(arg, path, depth) for arg in value.args)
        made = types.SimpleNamespace(
            name=value.name, state=self.make(value.state, path, depth),
            items=[self.make(item, path, depth) for item in value.listed],
            pairs=[(self.make(key, path, depth), self.make(item, f"{path}[{key!r}]", depth))
                   for key, item in value.pairs])
        try:
            return _MAKERS[value.name](args, made)
        except Exception:  # pylint: disable=broad-except
            del self.unknown[known:]  # the whole is named, not its parts
            return self.unmade(value.name, path, args, made.items + made.pairs, made.state)

    def make_argument(self, value: Any, path: str, depth: int) -> Any:
        # numpy.ndarray as an argument of its own constructor is no object of the user's
        if isinstance(value, type) and issubclass(value, _Inert) and value.name == "numpy.ndarray":
            return value.name
        return self.make(value, path, depth)


def decode(raw: bytes) -> Dict[Any, Any]:
    """The dictionary of a pickle that the library made. Objects of unknown classes are a warning."""
    maker = _Maker()
    state = maker.make(_Unpickler(raw).load(), "client_state")
    if maker.unknown:
        named = ", ".join(f"{path} ({name})" for path, name in maker.unknown[:10])
        more = f" and {len(maker.unknown) - 10} more" if len(maker.unknown) > 10 else ""
        lib.log.warning("the checkpoint's client state has objects of classes that are not created, "
                        "as czero.UnknownObject: %s%s", named, more)
    return state
