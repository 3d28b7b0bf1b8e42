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
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, NoReturn, Sequence, Set, Tuple

import numpy

from . import _library as lib

_DEPTH_MAX = 100
_FRACTION_BITS_MAX = 1 << 16  # the time to reduce a fraction is quadratic
_NAMED_MAX = 10
_KINDS = "biufcSUmM"  # of numpy's types

_TENSORS = ("float64", "float32", "float16", "bfloat16", "complex128", "complex64", "int64", "int32",
            "int16", "int8", "uint8", "bool")

_LEAVES = frozenset((
    type(None), bool, int, float, complex, str, bytes, bytearray, range, decimal.Decimal, uuid.UUID,
    pathlib.PurePosixPath, pathlib.PureWindowsPath, pathlib.PosixPath, pathlib.WindowsPath,
    datetime.date, datetime.timedelta, datetime.timezone))
_SEQUENCES = (list, tuple, set, frozenset, collections.deque)
_DICTS = (dict, collections.OrderedDict, collections.Counter, collections.defaultdict)
_NAMESPACES = (argparse.Namespace, types.SimpleNamespace)
_FACTORIES = (int, float, str, bool, list, dict, set, tuple)
_Step = Tuple[str, Any]  # a form such as "[%s]", and the key or index in it


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


def _is_short(*numbers: int) -> bool:
    return all(number.bit_length() <= _FRACTION_BITS_MAX for number in numbers)


# ---- saving --------------------------------------------------------------------------------------


def _place(steps: Sequence[_Step]) -> str:
    """The text of a value's place: "['a'][3]"."""
    texts = []
    for form, key in steps:
        try:
            texts.append(form % (key if form == ".%s" else repr(key),))
        except Exception:  # pylint: disable=broad-except
            texts.append(form % _class_name(type(key)))  # an integer of more digits than Python writes
    return "".join(texts)


class _Checker:
    """Walks a value; the first that would not come back equal is a TypeError."""

    def __init__(self) -> None:
        self.inside: Set[int] = set()  # the containers around the value
        self.done: Set[int] = set()
        self.steps: List[_Step] = []  # to the value; only an error makes a text of them

    def refuse(self, why: str) -> NoReturn:
        path = _place(self.steps)
        raise TypeError(f"client_state{path[:200]}{'…' * (len(path) > 200)}: {why}")

    def check(self, value: Any) -> None:
        kind = type(value)
        if kind in _LEAVES:
            return
        if kind is fractions.Fraction:
            if not _is_short(value.numerator, value.denominator):
                self.refuse(f"a fraction of more than {_FRACTION_BITS_MAX} bits is not stored")
        elif kind in (datetime.datetime, datetime.time):
            if value.tzinfo is not None and type(value.tzinfo) is not datetime.timezone:
                self.refuse(f"a time zone of {_class_name(type(value.tzinfo))} is not stored: "
                            "use datetime.timezone")
        elif kind is numpy.ndarray or isinstance(value, numpy.generic):
            if value.dtype.kind not in _KINDS or value.dtype.metadata:
                self.refuse(f"an array of {value.dtype} is not stored: use a list")
        elif _torch_of(value):
            self.check_torch(value)
        else:
            self.check_container(value, kind)

    def check_torch(self, value: Any) -> None:
        torch = _torch_of(value)
        if not isinstance(value, torch.Tensor):
            return
        if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout != torch.strided:
            self.refuse(f"{_class_name(type(value))} of layout {value.layout} is not stored: "
                        "use a dense torch.Tensor")
        if str(value.dtype)[6:] not in _TENSORS or value.is_meta:
            self.refuse(f"a tensor of {value.dtype} on {value.device} is not stored")

    def check_container(self, value: Any, kind: type) -> None:
        if kind not in (*_SEQUENCES, *_DICTS, *_NAMESPACES):
            self.refuse(f"{_class_name(kind)} is not stored: use numbers, texts, lists, "
                        "dictionaries or arrays instead")
        if id(value) in self.inside:
            self.refuse("contains itself")
        if len(self.inside) == _DEPTH_MAX:
            self.refuse(f"is nested deeper than {_DEPTH_MAX} containers")
        if id(value) in self.done:
            return
        if kind is collections.defaultdict and value.default_factory not in (None, *_FACTORIES):
            self.refuse(f"a default of {value.default_factory!r} is not stored")
        self.inside.add(id(value))
        if kind in _SEQUENCES:
            self.check_items("[%s]", enumerate(value))
        elif kind in _NAMESPACES:
            self.check_items(".%s", vars(value).items())
        else:
            self.check_items(", key %s", ((key, key) for key in value))
            self.check_items("[%s]", value.items())
        self.inside.discard(id(value))
        self.done.add(id(value))

    def check_items(self, form: str, items: Iterable[Tuple[Any, Any]]) -> None:
        self.steps.append((form, None))
        for key, item in items:
            if type(item) not in _LEAVES:
                self.steps[-1] = (form, key)
                self.check(item)
        self.steps.pop()


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
    if type(name) is not str or len(name) > 64:
        raise ValueError("a structured dtype")
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
    if args[0] != "numpy.ndarray" or dtype.kind not in _KINDS or type(shape) is not tuple:
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
    number = made.state["int"]
    if type(number) is not int:
        raise ValueError("a UUID without its number")
    return uuid.UUID(int=number)


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
    if made.name == "torch.Size":
        return _of(torch.Size, list, tuple)(args, made)
    return torch.device(*args)


def _torch() -> Any:
    try:
        import torch  # pylint: disable=import-outside-toplevel
    except ImportError:
        return None
    return torch


# A call's time and memory are bounded by its arguments' bytes in the pickle. A range, or a number with
# a large exponent, takes few bytes and stands for many: only the types that such a pickle has pass.
_HELD = (list, tuple, set, frozenset, dict)


def _of(make: Callable[..., Any], *kinds: type) -> Callable[[Any, Any], Any]:
    def made_of(args: Any, made: Any) -> Any:
        if any(type(arg) not in kinds for arg in args):
            raise ValueError("an argument that no such pickle has")
        return make(*args)
    return made_of


def _of_pairs(make: Callable[..., Any], *kinds: type) -> Callable[[Any, Any], Any]:
    def filled(args: Any, made: Any) -> Any:
        result = _of(make, *kinds)(args, made)
        for key, value in made.pairs:
            result[key] = value
        return result
    return filled


def _latin1(text: str, encoding: str = "latin1") -> bytes:
    if encoding not in ("latin1", "latin-1"):
        raise ValueError(encoding)
    return text.encode("latin1")


def _bytes(text: Any = "", encoding: str = "latin1") -> bytes:
    return text if isinstance(text, bytes) else _latin1(text, encoding)


def _fraction(*args: Any) -> fractions.Fraction:
    numbers = args
    if len(args) == 1 and isinstance(args[0], str):
        if set(args[0]) - set("0123456789-/") or len(args[0]) > _FRACTION_BITS_MAX:
            raise ValueError("a fraction with an exponent, or too long")
        numbers = tuple(int(number) for number in args[0].split("/"))
    if any(type(number) is not int for number in numbers) or not _is_short(*numbers):
        raise ValueError("a fraction of other numbers")
    return fractions.Fraction(*numbers)


def _factory(*args: Any) -> Any:
    if args and args[0] is not None and args[0] not in _FACTORIES:
        raise ValueError("an unknown default")
    return collections.defaultdict(*args)


_MAKERS: Dict[str, Callable[[Any, Any], Any]] = {
    "_codecs.encode": _of(_latin1, str),
    "builtins.bytes": _of(_bytes, str, bytes),
    "builtins.bytearray": _of(lambda *args: bytearray(_bytes(*args)), str, bytes),
    "builtins.complex": _of(complex, float, int), "builtins.range": _of(range, int),
    "builtins.set": _of(set, *_HELD), "builtins.frozenset": _of(frozenset, *_HELD),
    "builtins.list": _of(list, *_HELD), "builtins.tuple": _of(tuple, *_HELD),
    "collections.OrderedDict": _of_pairs(collections.OrderedDict, *_HELD),
    "collections.Counter": _of_pairs(collections.Counter, dict),
    "collections.defaultdict": _of_pairs(_factory, type(None), type), "collections.deque": _deque,
    "datetime.datetime": _of(datetime.datetime, bytes, str, datetime.timezone),
    "datetime.date": _of(datetime.date, bytes, str),
    "datetime.time": _of(datetime.time, bytes, str, datetime.timezone),
    "datetime.timedelta": _of(datetime.timedelta, int),
    "datetime.timezone": _of(datetime.timezone, datetime.timedelta, str),
    "decimal.Decimal": _of(decimal.Decimal, str),
    "fractions.Fraction": _of(_fraction, str, int), "uuid.UUID": _uuid,
    "argparse.Namespace": _namespace, "types.SimpleNamespace": _namespace,
    "numpy.dtype": _dtype, "numpy._core.multiarray._reconstruct": _array,
    "numpy._core.multiarray.scalar": _scalar,
    "czero.client_state.tensor": _of(tensor, str, tuple, bytes),
    "torch.Size": _torch_call, "torch.device": _torch_call,
}
for _name in ("PurePosixPath", "PureWindowsPath", "PosixPath", "WindowsPath"):
    for _module in ("pathlib", "pathlib._local"):
        _MAKERS[f"{_module}.{_name}"] = _of(getattr(pathlib, _name), str)
_CLASSES = {f"builtins.{kind.__name__}": kind for kind in _FACTORIES}


class _Maker:
    """Makes values of inert records, each once: what is shared stays shared."""

    def __init__(self) -> None:
        self.made: Dict[int, Any] = {}
        self.unknown: List[Tuple[Sequence[_Step], str]] = []
        self.steps: List[_Step] = []

    def make(self, value: Any, depth: int = 0) -> Any:
        if isinstance(value, type) and issubclass(value, _Inert):
            return self.make_global(value.name)
        if type(value) not in (list, tuple, dict) and not isinstance(value, _Inert):
            return value
        if id(value) not in self.made:
            self.made[id(value)] = self.make_new(value, depth + 1)
        return self.made[id(value)]

    def make_items(self, items: Iterable[Tuple[Any, Any]], depth: int) -> Iterator[Any]:
        self.steps.append(("[%s]", None))
        for key, item in items:
            if type(item) in _LEAVES:
                yield item
                continue
            self.steps[-1] = ("[%s]", key)
            yield self.make(item, depth)
        self.steps.pop()

    def make_pairs(self, items: Iterable[Tuple[Any, Any]], depth: int) -> List[Tuple[Any, Any]]:
        pairs = [(self.make(key, depth), item) for key, item in items]
        made = list(self.make_items(pairs, depth))
        return [(key, item) for (key, _), item in zip(pairs, made)]

    def make_new(self, value: Any, depth: int) -> Any:
        if depth > 2 * _DEPTH_MAX:
            return self.unmade("a container that is nested too deeply", (), [], None)
        if isinstance(value, _Inert):
            return self.make_called(value, depth)
        if not isinstance(value, dict):
            return type(value)(self.make_items(enumerate(value), depth))
        made = self.make_pairs(value.items(), depth)
        try:
            return dict(made)
        except TypeError:  # a key that cannot be hashed
            return self.unmade("dict", (), made, None)

    def unmade(self, name: str, args: Any, items: Any, state: Any) -> UnknownObject:
        self.unknown.append((tuple(self.steps) if len(self.unknown) < _NAMED_MAX else (), name))
        return UnknownObject(name, args, items, state)

    def make_global(self, name: str) -> Any:
        if name in _CLASSES:
            return _CLASSES[name]
        torch = _torch() if name.startswith("torch.") else None
        if torch is not None and isinstance(getattr(torch, name[6:], None), torch.dtype):
            return getattr(torch, name[6:])
        return self.unmade(name, (), [], None)

    def make_called(self, value: Any, depth: int) -> Any:
        known = len(self.unknown)
        args = tuple(self.make_argument(arg, depth) for arg in value.args)
        made = types.SimpleNamespace(
            name=value.name, state=self.make(value.state, depth),
            items=[self.make(item, depth) for item in value.listed],
            pairs=self.make_pairs(value.pairs, depth))
        try:
            return _MAKERS[value.name](args, made)
        except Exception:  # pylint: disable=broad-except
            del self.unknown[known:]  # the whole is named, not its parts
            return self.unmade(value.name, args, made.items + made.pairs, made.state)

    def make_argument(self, value: Any, depth: int) -> Any:
        # numpy.ndarray as an argument of its own constructor is no object of the user's
        if isinstance(value, type) and issubclass(value, _Inert) and value.name == "numpy.ndarray":
            return value.name
        return self.make(value, depth)


def decode(raw: bytes) -> Dict[Any, Any]:
    """The dictionary of a pickle that the library made. Objects of unknown classes are a warning."""
    maker = _Maker()
    state = maker.make(_Unpickler(raw).load())
    if maker.unknown:
        named = ", ".join(f"client_state{_place(steps)} ({name})"
                          for steps, name in maker.unknown[:_NAMED_MAX])
        n_more = len(maker.unknown) - _NAMED_MAX
        more = f" and {n_more} more" if n_more > 0 else ""
        lib.log.warning("the checkpoint's client state has objects of classes that are not created, "
                        "as czero.UnknownObject: %s%s", named, more)
    return state
