"""The C library: its structs and calls for ctypes, errors as exceptions, log lines for `logging`.

Structs are those of include/czero/*.h; tests/python/check_module.py compares their offsets
with the compiler's. Every option struct begins with its own size, which `new()` sets.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import logging
import operator
import os
import re
import sys
import threading
import weakref
from ctypes import POINTER, c_bool, c_char_p, c_double, c_float, c_int, c_int32, c_int64
from ctypes import c_size_t, c_uint8, c_uint64, c_void_p
from pathlib import Path
from typing import Any, Callable, List, NoReturn, Optional, Union

PathLike = Union[str, "os.PathLike[str]"]
log = logging.getLogger("czero")


class Error(RuntimeError):
    """A call of the library failed. `status` is the name of its status, such as "CZ_IO"."""

    def __init__(self, message: str, status: str) -> None:
        super().__init__(message)
        self.status = status


class NotFoundError(Error):
    """A folder, file, tag, preset or parameter does not exist."""


class NoParameterError(NotFoundError, KeyError):
    """No parameter has this name."""

    __str__ = RuntimeError.__str__  # a KeyError's has quotes


class InvalidError(Error, ValueError):
    """An argument, a config value or the order of calls makes no sense."""


class DestroyedError(InvalidError, AttributeError):
    """The object was destroyed: it has no attributes any more, as hasattr() then says."""


class OutOfMemoryError(Error, MemoryError):
    """The run does not fit (the message has the plan's table), or the system refused memory."""


class CorruptError(Error):
    """A file contradicts itself or its format, or a checksum differs."""


_ERRORS = {"CZ_NOTFOUND": NotFoundError, "CZ_INVALID": InvalidError, "CZ_NOMEM": OutOfMemoryError,
           "CZ_CORRUPT": CorruptError}

# ---- structs -------------------------------------------------------------------------------------


class ModelOptions(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("task", c_int), ("labels", POINTER(c_char_p)),
                ("n_labels", c_size_t), ("vocab_size", c_int64), ("config_only", c_bool)]


class ParamInfo(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("name", c_char_p), ("ndim", c_int), ("shape", c_int64 * 4),
                ("numel", c_size_t), ("trainable", c_bool)]


class Batch(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("B", c_int64), ("T", c_int64), ("ids", POINTER(c_int32)),
                ("labels", POINTER(c_int32)), ("types", POINTER(c_int32)),
                ("positions", POINTER(c_int32)), ("key_mask", POINTER(c_uint8)),
                ("loss_weights", POINTER(c_float)), ("loss_divisor", c_float),
                ("sample", c_uint64), ("documents", POINTER(c_int32)),
                ("targets", POINTER(c_float))]


class EngineOptions(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("config_path", c_char_p), ("config_json", c_char_p),
                ("device", c_char_p), ("world", c_void_p), ("groups", c_void_p),
                ("n_groups", c_size_t), ("groups_hf", c_bool), ("seed", c_uint64),
                ("compat", c_char_p), ("strict", c_bool), ("total_steps", c_int64),
                ("auto_values", POINTER(c_char_p)), ("set_values", POINTER(c_char_p)),
                ("print", c_void_p), ("print_user", c_void_p),
                ("option_values", POINTER(c_char_p)), ("trains_batches", c_bool)]


class SaveOptions(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("tag", c_char_p), ("cursor", c_void_p),
                ("client_state_json", c_char_p), ("exclude_frozen", c_bool),
                ("keep_latest", c_bool), ("keep", c_int64),
                ("client_state_pickle", c_char_p), ("client_state_nbytes", c_size_t),
                ("keep_tags", POINTER(c_char_p)), ("weights_only", c_bool)]


class LoadOptions(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("tag", c_char_p), ("lenient", c_bool),
                ("no_optimizer_states", c_bool), ("no_lr_scheduler", c_bool),
                ("module_only", c_bool), ("no_verify", c_bool),
                ("pickles_client_state", c_bool), ("renames", POINTER(c_char_p))]


class DataCursor(ctypes.Structure):
    _fields_ = [("epoch", c_uint64), ("sample", c_uint64), ("n_rows", c_uint64),
                ("seed", c_uint64), ("shuffle", c_bool)]


class LoadResult(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("tag_dir", c_char_p), ("client_state_json", c_char_p),
                ("n_restored", c_size_t), ("n_tensors", c_size_t), ("has_states", c_bool),
                ("has_cursor", c_bool), ("cursor", DataCursor),
                ("client_state_pickle", c_void_p), ("client_state_nbytes", c_size_t)]


class PlanOptions(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("world_size", c_int64), ("profile_path", c_char_p)]


class ConsolidateOptions(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("dir", c_char_p), ("tag", c_char_p), ("out_dir", c_char_p),
                ("format", c_int), ("shard_nbytes_max", c_uint64), ("exclude_frozen", c_bool),
                ("has_dtype", c_bool), ("dtype", c_int), ("verify", c_bool), ("n_threads", c_int),
                ("progress", c_void_p), ("user", c_void_p)]


class ConsolidateResult(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("n_tensors", c_size_t), ("n_aliases", c_size_t),
                ("n_files", c_size_t), ("numel", c_uint64), ("nbytes", c_uint64)]


class WeightsOptions(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("dir", c_char_p), ("tag", c_char_p),
                ("exclude_frozen", c_bool), ("has_dtype", c_bool), ("dtype", c_int)]


class WeightInfo(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("name", c_char_p), ("dtype", c_int), ("ndim", c_int),
                ("shape", c_int64 * 8), ("numel", c_size_t), ("aliases", POINTER(c_char_p)),
                ("n_aliases", c_size_t)]


class TokenizerInput(ctypes.Structure):
    _fields_ = [("text", c_char_p), ("nbytes", c_size_t), ("pair", c_char_p),
                ("pair_nbytes", c_size_t)]


STRUCTS = {"cz_tokenizer_input": TokenizerInput,
           "cz_model_options": ModelOptions, "cz_param_info": ParamInfo, "cz_batch": Batch,
           "cz_engine_options": EngineOptions, "cz_save_options": SaveOptions,
           "cz_load_options": LoadOptions, "cz_data_cursor": DataCursor,
           "cz_load_result": LoadResult, "cz_plan_options": PlanOptions,
           "cz_consolidate_options": ConsolidateOptions,
           "cz_consolidate_result": ConsolidateResult, "cz_weights_options": WeightsOptions,
           "cz_weight_info": WeightInfo}


def new(struct: Any, **members: Any) -> Any:
    """A struct with its size and these members; the rest is zero, which means the default."""
    return struct(size=ctypes.sizeof(struct), **members)


# ---- calls ---------------------------------------------------------------------------------------


class Status(c_int):
    """Result type of calls that fail with an exception."""


_P, _S, _N = c_void_p, c_char_p, c_size_t
_SINK = ctypes.CFUNCTYPE(None, c_int, c_char_p, c_void_p)
NextBatch = ctypes.CFUNCTYPE(c_int, c_void_p, POINTER(Batch))
OK, INVALID, NOT_FOUND = 0, -1, -7  # enum cz_status

# name: result, arguments
_CALLS = {
    "cz_version": (_S, []),
    "cz_status_name": (_S, [c_int]),
    "cz_last_error": (_S, []),
    "cz_last_status": (c_int, []),
    "cz_error": (c_int, [c_int, _S, _S]),
    "cz_log_set_sink": (None, [_P, _P]),
    "cz_parse_size": (Status, [_S, POINTER(c_uint64)]),
    "cz_consolidate": (Status, [POINTER(ConsolidateOptions), POINTER(ConsolidateResult)]),
    "cz_weights_open": (Status, [POINTER(WeightsOptions), POINTER(_P)]),
    "cz_weights_close": (None, [_P]),
    "cz_weights_check": (Status, [_P]),
    "cz_weights_count": (_N, [_P]),
    "cz_weights_at": (Status, [_P, _N, POINTER(WeightInfo)]),
    "cz_weights_read": (Status, [_P, _N, _P, _N]),
    "cz_model_open_ex": (_P, [_S, POINTER(ModelOptions)]),
    "cz_model_destroy": (None, [_P]),
    "cz_model_set_shape": (Status, [_P, c_int64]),
    "cz_model_set_seed": (None, [_P, c_uint64]),
    "cz_model_freeze": (Status, [_P, _S, POINTER(_N)]),
    "cz_model_add_adapter": (Status, [_P, _S, c_bool]),
    "cz_model_labels": (c_int, [_P]),
    "cz_model_name": (_S, [_P]),
    "cz_model_n_classes": (c_int64, [_P]),
    "cz_model_vocab_size": (c_int64, [_P]),
    "cz_model_hidden_size": (c_int64, [_P]),
    "cz_model_n_params": (_N, [_P]),
    "cz_model_param": (Status, [_P, _N, POINTER(ParamInfo)]),
    "cz_plan_create": (Status, [POINTER(EngineOptions), POINTER(PlanOptions), _P, POINTER(_P)]),
    "cz_plan_destroy": (None, [_P]),
    "cz_plan_nbytes": (_N, [_P, c_int]),
    "cz_plan_sent_nbytes": (_N, [_P]),
    "cz_plan_step_s": (c_double, [_P]),
    "cz_plan_fits": (c_bool, [_P]),
    "cz_plan_table": (Status, [_P, POINTER(_P)]),
    "cz_plan_json": (Status, [_P, POINTER(_P)]),
    "engine_world_create": (Status, [POINTER(_P)]),
    "engine_world_destroy": (None, [_P]),
    "engine_world_leave": (None, [_P, _S]),
    "engine_world_agree": (Status, [_P, c_int, _P]),
    "engine_initialize_ex": (_P, [POINTER(EngineOptions), _P]),
    "engine_destroy": (None, [_P]),
    "engine_forward": (Status, [_P, POINTER(Batch), POINTER(c_float)]),
    "engine_backward": (Status, [_P]),
    "engine_step": (Status, [_P]),
    "engine_discard_step": (Status, [_P]),
    "engine_gather_metrics": (Status, [_P, POINTER(c_double), _N, POINTER(c_double)]),
    "engine_train_batch": (Status, [_P, NextBatch, _P, POINTER(c_float)]),
    "engine_eval": (Status, [_P, POINTER(Batch), POINTER(c_float)]),
    "engine_eval_tokens": (Status, [_P, POINTER(Batch), POINTER(c_float), POINTER(c_int64)]),
    "engine_predict": (Status, [_P, POINTER(Batch), _P]),
    "engine_hidden": (Status, [_P, POINTER(Batch), _P]),
    "cz_tokenizer_open": (Status, [_S, POINTER(_P)]),
    "cz_tokenizer_close": (None, [_P]),
    "cz_tokenizer_vocab_size": (c_int64, [_P]),
    "cz_tokenizer_padding_id": (c_int32, [_P]),
    "cz_tokenizer_end_id": (c_int64, [_P]),
    "cz_tokenizer_encode_input": (Status, [_P, POINTER(TokenizerInput), c_int64, POINTER(c_int32),
                                           POINTER(c_int32), POINTER(c_int64), POINTER(_N)]),
    "cz_tokenizer_decoder_create": (Status, [_P, POINTER(_P)]),
    "cz_tokenizer_decoder_destroy": (None, [_P]),
    "cz_tokenizer_decode": (Status, [_P, c_int64, POINTER(_S), POINTER(_N)]),
    "cz_tokenizer_decoder_end": (None, [_P, POINTER(_S), POINTER(_N)]),
    "engine_get_lr": (c_double, [_P]),
    "engine_set_lr": (Status, [_P, c_double]),
    "engine_get_global_grad_norm": (c_double, [_P]),
    "engine_get_loss_scale": (c_double, [_P]),
    "engine_get_global_steps": (c_int64, [_P]),
    "engine_get_global_samples": (c_int64, [_P]),
    "engine_get_skipped_steps": (c_int64, [_P]),
    "engine_get_micro_steps": (c_int64, [_P]),
    "engine_was_step_applied": (c_bool, [_P]),
    "engine_is_gradient_accumulation_boundary": (c_bool, [_P]),
    "engine_get_micro_batch": (c_int64, [_P]),
    "engine_get_accumulation": (c_int64, [_P]),
    "engine_get_train_batch": (c_int64, [_P]),
    "engine_get_world_size": (c_int64, [_P]),
    "engine_get_rank": (c_int64, [_P]),
    "engine_get_model": (_P, [_P]),
    "engine_param_get": (Status, [_P, _S, _S, _P, _N]),
    "engine_param_set": (Status, [_P, _S, _S, _P, _N]),
    "engine_save_checkpoint_ex": (Status, [_P, _S, POINTER(SaveOptions)]),
    "engine_load_checkpoint_ex": (Status, [_P, _S, POINTER(LoadOptions), POINTER(LoadResult)]),
    "cz_free": (None, [c_void_p]),
    "cz_load_result_free": (None, [POINTER(LoadResult)]),
    "engine_save_16bit_model": (Status, [_P, _S, _S, c_bool, POINTER(c_bool)]),
    "engine_export_hf": (Status, [_P, _S, c_int]),
}


# Calls whose methods have other names.
_NAMES = {"engine_discard_step": "zero_grad()", "engine_param_get": "get_parameter()",
          "engine_param_set": "set_parameter()", "engine_initialize": "czero.initialize()"}
_C_NAME = re.compile(r"(\ban )?(?<![\w/.-])(engine_[a-z0-9_]+)(?:\(\))?(?![\w/-]|\.\w)")


def said(raw: Optional[bytes]) -> str:
    """A sentence of the library: calls under their names here, and a dictionary has no lines."""
    def name(match: Any) -> str:
        call = match[2]
        ours = _NAMES.get(call) or (call[7:] + "()" if call in _CALLS else "")
        if not ours:
            return match[0]
        article = ("an " if ours[0] in "aeiou" else "a ") if match[1] else ""
        return article + ours
    return _C_NAME.sub(name, re.sub(r"<memory>(:\d+)*:", "config:", text(raw)))


def last_error() -> Error:
    """The exception for this thread's last failed call."""
    status = text(C.cz_status_name(C.cz_last_status()))
    return _ERRORS.get(status, Error)(said(C.cz_last_error()), status)


def _check(status: Status, *_: Any) -> None:
    if status.value != 0:
        raise last_error()


_FILE = "libczero.so.0"


def _find() -> str:
    """CZERO_LIBRARY is the file, its folder, or a prefix; else a wheel's, else the system's."""
    named = os.environ.get("CZERO_LIBRARY")
    if named and os.path.isdir(named):
        within = [Path(named, *where, _FILE) for where in ((), ("lib",), ("lib64",))]
        within += sorted(Path(named).glob(f"lib/*/{_FILE}"))  # Debian's
        found = [str(file) for file in within if file.exists()]
        if not found:
            raise ImportError(f"CZERO_LIBRARY={named}: the folder has no {_FILE}, and no lib/{_FILE}",
                              name="czero")
        return found[0]
    inside = Path(__file__).parent / "native" / _FILE
    return named or (str(inside) if inside.exists() else _FILE)


def _open(name: str) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(name)
    except OSError as error:
        named = os.environ.get("CZERO_LIBRARY")
        tried = f"CZERO_LIBRARY={named}" if named else (
            name if os.path.isabs(name)
            else f"{Path(__file__).parent}/native/{_FILE} and the system's folders")
        raise ImportError(
            f"the library of czero cannot be loaded ({error}). Tried: {tried}. Set CZERO_LIBRARY to "
            f"{_FILE}, its folder, or the prefix of an installation: export CZERO_LIBRARY=/opt/czero",
            name="czero") from None


def _load() -> ctypes.CDLL:
    # Waiting threads sleep soon (base/threads.h, THREADS_SPIN). OpenMP reads this when it is loaded.
    waits = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys()
    if not waits:
        os.environ["GOMP_SPINCOUNT"] = "1000"
    try:
        library = _open(_find())
    finally:
        if not waits:
            del os.environ["GOMP_SPINCOUNT"]
    for name, (result, arguments) in _CALLS.items():
        try:
            call = getattr(library, name)
        except AttributeError:
            raise ImportError(f"{library._name}: is of another version than this module in "
                              f"{Path(__file__).parent}: it has no {name}", name="czero") from None
        call.restype, call.argtypes = result, arguments
        if result is Status:
            call.errcheck = _check
    return library


class _SignalStack(ctypes.Structure):
    _fields_ = [("start", c_void_p), ("flags", c_int), ("nbytes", c_size_t)]


_SS_DISABLE = 2
_signal_stack: Any = None  # its memory


def _take_signal_stack() -> None:
    """A stack for this thread's signal handlers, if it has none. oneDNN's kernels use the stack
    pointer for data: the frame of a handler such as Ctrl-C's would overwrite the heap."""
    global _signal_stack
    before = _SignalStack()
    libc = ctypes.CDLL(None)
    if libc.sigaltstack(None, ctypes.byref(before)) == 0 and before.flags & _SS_DISABLE:
        _signal_stack = ctypes.create_string_buffer(1 << 16)
        own = _SignalStack(start=ctypes.addressof(_signal_stack), nbytes=1 << 16)
        libc.sigaltstack(ctypes.byref(own), None)


def text(raw: Optional[bytes]) -> str:
    return (raw or b"").decode("utf-8", "replace")


def path(name: PathLike) -> bytes:
    """A name as bytes for C. A NUL, which would end it there, is a ValueError."""
    raw = os.fsencode(name)
    if b"\0" in raw:
        raise ValueError(f"{name!r}: a NUL is inside")
    return raw


def integer(value: Any, what: str, low: int = 0, high: int = 2**63 - 1) -> int:
    """An integer of Python's or numpy's, within bounds; ctypes would wrap others in silence."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{what}: an integer is needed, not {value!r}")
    number = operator.index(value)
    if not low <= number <= high:
        raise ValueError(f"{what} {number}: a number from {low} to {high} is needed")
    return number


def optional(name: Optional[PathLike]) -> Optional[bytes]:
    return None if name is None else path(name)


def tag_text(tag: Any) -> Optional[bytes]:
    """A checkpoint's tag as bytes. Integers become text, as in DeepSpeed."""
    if isinstance(tag, bool) or not (tag is None or isinstance(tag, (str, os.PathLike))
                                     or hasattr(tag, "__index__")):
        raise TypeError(f"tag {tag!r}: a string or an integer is needed, "
                        f"not {type(tag).__name__}")
    return optional(tag if tag is None or isinstance(tag, os.PathLike) else str(tag))


def taken(call: Any, handle: c_void_p) -> str:
    """The text that `call` allocates for its caller."""
    out = c_void_p()
    call(handle, ctypes.byref(out))
    try:
        return text(ctypes.string_at(out.value)) if out.value else ""
    finally:
        C.cz_free(out)


@_SINK
def _sink(level: int, line: bytes, _: Any) -> None:
    # The logger's lock is held, and a collected engine would call the library.
    collects = gc.isenabled()
    gc.disable()
    try:
        log.log(logging.WARNING if level == 0 else logging.INFO if level < 2 else logging.DEBUG,
                "%s", said(line))
    finally:
        if collects:
            gc.enable()


C = _load()
if threading.current_thread() is threading.main_thread():  # it gets the process's signals
    _take_signal_stack()
C.cz_log_set_sink(ctypes.cast(_sink, c_void_p), None)

# ---- objects over the library's ------------------------------------------------------------------


class Uncopied:
    """Base of everything that owns an object of the library: a second one would share it."""

    _instead = "create another one"

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError(f"{type(self).__name__} cannot be copied, pickled or sent to another process: "
                        f"{self._instead}")

    __copy__ = __deepcopy__ = __replace__ = __getstate__ = _refuse
    __reduce__ = __reduce_ex__ = _refuse  # type: ignore[assignment]


class Handle(Uncopied):
    """The only owner of an object of the library. It refuses calls after destroy(), from another
    process, and while another call changes the object."""

    def __init__(self, pointer: Any, release: Callable[[Any], None], what: str) -> None:
        self._pointer, self._release, self.what = pointer, release, what
        self._pid = os.getpid()
        self._guard = threading.Lock()
        self._caller: Optional[str] = None  # the thread that is in run()
        self._n_readers = 0
        handles.add(self)

    def _fail(self, why: str) -> NoReturn:
        raise InvalidError(f"this {self.what} {why}", "CZ_INVALID")

    def _check(self) -> None:
        if self._pid != os.getpid():  # before the guard, which the parent may have held
            self._fail(f"belongs to process {self._pid}: create one in this process, which must not "
                       "be forked from one that trains (multiprocessing: use \"spawn\")")

    def _live(self) -> None:
        if self._pointer is None:
            raise DestroyedError(f"this {self.what} was destroyed", "CZ_INVALID")

    def run(self, call: Any, *arguments: Any) -> Any:
        """call(pointer, …), which may change the object."""
        self._check()
        name, entered = threading.current_thread().name, ""  # Ctrl-C may come between any two lines
        try:
            with self._guard:
                self._live()
                if self._caller is not None:
                    self._fail(f"is in another call, of thread {self._caller}: one call at a time")
                entered = self._caller = name
            return call(self._pointer, *arguments)
        finally:
            if entered:
                self._caller = None

    def read(self, call: Any, *arguments: Any) -> Any:
        """call(pointer, …), which changes nothing: from any thread, also during run()."""
        self._check()
        with self._guard:
            self._live()
            self._n_readers += 1
        try:
            return call(self._pointer, *arguments)
        finally:
            with self._guard:
                self._n_readers -= 1

    def destroy(self) -> None:
        """Release the object; a forked child only forgets it. May be called again."""
        if self._pid != os.getpid():
            self._pointer = None
            return
        with self._guard:
            if self._caller is not None or self._n_readers > 0:
                self._fail("is in a call: destroy it after the call")
            pointer, self._pointer = self._pointer, None
        if pointer is not None:
            self._release(pointer)

    def __del__(self) -> None:
        if getattr(self, "_pointer", None) is not None:
            self.destroy()


# ---- the ranks of this run, and its end ----------------------------------------------------------

handles: "weakref.WeakSet[Handle]" = weakref.WeakSet()
_world: Optional[c_void_p] = None
_world_pid = 0


def world() -> c_void_p:
    """The ranks that `czero launch`, mpirun or srun started; else one. Collective the first time."""
    global _world, _world_pid
    if _world is not None and _world_pid != os.getpid():
        raise InvalidError("this process is a fork of one that trains: start it in another way "
                           "(multiprocessing: use \"spawn\")", "CZ_INVALID")
    if _world is None:
        created = c_void_p()
        C.engine_world_create(ctypes.byref(created))
        _world, _world_pid = created, os.getpid()
        former = sys.excepthook

        def leave(kind: Any, value: Any, trace: Any) -> None:
            # Other ranks get this reason instead of waiting for a rank that has ended. It is printed
            # first: once they know, `czero launch` ends this rank, too.
            try:
                former(kind, value, trace)
                sys.stderr.flush()
            finally:
                if _world_pid == os.getpid():
                    C.engine_world_leave(_world, f"{kind.__name__}: {value}".encode("utf-8", "replace"))

        sys.excepthook = leave
    return _world


@atexit.register
def _end() -> None:
    live: List[Handle] = list(handles)
    n_busy = 0
    for handle in live:
        try:
            handle.destroy()
        except InvalidError:  # a daemon thread is in a call
            n_busy += 1
    C.cz_log_set_sink(None, None)
    if _world is not None and _world_pid == os.getpid() and n_busy == 0:
        C.engine_world_destroy(_world)
