"""Training: czero.initialize() and the engine, used as DeepSpeed's, on numpy arrays."""

from __future__ import annotations

import contextlib
import ctypes
import difflib
import json
import math
import os
from collections.abc import Iterable as AnIterable
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional
from typing import Sequence, Tuple, Union

import numpy
from numpy.typing import ArrayLike

from . import _library as lib
from . import client_state as client_state_module
from ._library import C, PathLike
from .checkpoints import dtype_number

Config = Union[PathLike, Mapping[str, Any]]
MicroBatch = Union[Mapping[str, ArrayLike], Sequence[ArrayLike]]
IGNORE_LABEL = -100  # takes no part in the loss, as in torch
_TASKS = {"auto": 0, "causal_lm": 1, "masked_lm": 2, "classification": 3,
          "replaced_tokens": 4, "token_classification": 5}
_NEXT, _SAME, _CLASS, _REPLACED, _TOKEN_CLASS, _VALUES, _MULTI = range(7)  # enum cz_labels
_CONFIG_DEPTH_MAX = 64
_POOLS = ("none", "cls", "mean", "last")
_OF_ROWS = (_CLASS, _VALUES, _MULTI)  # the head has a row of outputs per row, not per token


def _say_model_alone(model: PathLike) -> None:
    """As the commands: transformers would load the adapter and the base that it names."""
    name = os.fsdecode(model)
    files = ("config.json", "adapter_config.json", "adapter_model.safetensors")
    if all(os.path.exists(os.path.join(name, file)) for file in files):
        lib.log.warning("%s: files that czero does not use: %s (the model is taken alone; "
                        "adapter=\"%s\" adds it)", name, files[2], name)


def open_model(model: PathLike, *, seq_len: Optional[int] = None, task: str = "auto",
               labels: Sequence[str] = (), freeze: Optional[str] = None,
               adapter: Optional[PathLike] = None, seed: int = 0) -> ctypes.c_void_p:
    """A model for C calls; the caller passes it on or destroys it."""
    if task not in _TASKS:
        raise ValueError(f'task "{task}": one of {", ".join(_TASKS)} is needed')
    if isinstance(labels, (str, bytes)):
        raise TypeError(f"labels {labels!r}: a list of the classes' names is needed")
    seed = lib.integer(seed, "seed", 0, 2**64 - 1)
    if seq_len is not None:
        seq_len = lib.integer(seq_len, "seq_len", 1)
    if adapter is None:
        _say_model_alone(model)
    names = (ctypes.c_char_p * len(labels))(*(lib.path(label) for label in labels))
    options = lib.new(lib.ModelOptions, task=_TASKS[task], labels=names, n_labels=len(labels))
    opened = C.cz_model_open_ex(lib.path(model), ctypes.byref(options))
    if not opened:
        raise lib.last_error()
    try:
        if seq_len is not None:
            C.cz_model_set_shape(opened, seq_len)
        C.cz_model_set_seed(opened, seed)
        if adapter is not None:
            C.cz_model_add_adapter(opened, lib.path(adapter), True)
        if freeze is not None:
            C.cz_model_freeze(opened, lib.path(freeze), None)
    except BaseException:
        C.cz_model_destroy(opened)
        raise
    return opened


def _plain(value: Any, path: str, depth: int = 0) -> Any:
    """A config's value as JSON has it; a TypeError or ValueError names its key."""
    if value is None or isinstance(value, (bool, numpy.bool_)):
        return None if value is None else bool(value)
    if isinstance(value, (str, os.PathLike)):
        return str.__str__(value) if isinstance(value, str) else os.fspath(value)
    if isinstance(value, (int, numpy.integer)):
        return int(value)
    if isinstance(value, (float, numpy.floating)):
        if path == "steps_per_print" and value == math.inf:  # as accelerate says never
            return None
        if not math.isfinite(value):
            raise ValueError(f"config: {path}: {value} is not a value that JSON has")
        return float(value)
    if depth == _CONFIG_DEPTH_MAX:
        raise ValueError(f"config: {path[:80]}: is nested deeper than {depth} levels")
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"config: {path or 'the dictionary'}: the key {key!r} is no string")
        return {str.__str__(key): _plain(item, f"{path}.{key}" if path else key, depth + 1)
                for key, item in value.items()}
    if isinstance(value, numpy.ndarray):
        value = value.tolist() if value.ndim else [value.item()]
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{path}[{idx}]", depth + 1) for idx, item in enumerate(value)]
    raise TypeError(f"config: {path}: a {type(value).__name__} has no form in JSON")


def engine_options(config: Config, lora: Optional[Mapping[str, Any]] = None, **members: Any) -> Any:
    """A config is a file, or a dictionary, which is passed on as JSON."""
    if isinstance(config, Mapping):
        members["config_json"] = json.dumps(_plain(config, "")).encode()
    elif isinstance(config, (str, os.PathLike)):
        members["config_path"] = lib.path(config)
    else:
        raise TypeError(f"config: a file or a dictionary is needed, not {type(config).__name__}")
    if lora is not None:
        if not isinstance(lora, Mapping):
            raise TypeError(f"lora: a dictionary such as {{'rank': 8}} is needed, not {lora!r}")
        texts = [f"czero.lora.{key}={json.dumps(value)}".encode()
                 for key, value in _plain(lora, "lora").items()] or [b"czero.lora.rank=8"]
        members["option_values"] = (ctypes.c_char_p * (len(texts) + 1))(*texts, None)
    device = members.get("device")
    if device is not None and not isinstance(device, (str, bytes)):
        if type(device).__module__ != "torch":  # torch.device("cpu") has the same text
            raise TypeError(f'device: "cpu", "cuda" or "cuda:N" is needed, not {device!r}')
        device = str(device)
    members["device"] = lib.optional(device)
    return lib.new(lib.EngineOptions, **members)


# deepspeed.initialize()'s other arguments that have no meaning here, and what has.
_OF_DEEPSPEED = {
    "optimizer": 'the config\'s "optimizer" has it',
    "lr_scheduler": 'the config\'s "scheduler" has it',
    "model_parameters": "the engine trains all parameters of its model; freeze= leaves some out, "
                        "weight_decay_groups=True makes two groups",
    "training_data": "give batches to forward() or train_batch()",
    "collate_fn": "give batches to forward() or train_batch()",
    "mpu": "ranks are data-parallel", "mesh_param": "ranks are data-parallel",
}
_WITHOUT_EFFECT = ("dist_init_required", "distributed_port")  # czero launch and mpirun decide


def _ported(positional: Sequence[Any], model: Any, config: Any, args: Any,
            more: Mapping[str, Any]) -> Any:
    """The config of a call written for DeepSpeed; one TypeError names all that it cannot mean."""
    problems = []
    if positional:
        problems.append("it takes keywords alone: model=folder, config=file or dictionary")
    elif model is None:
        problems.append("model is missing: a Hugging Face folder, or a preset")
    if model is not None and not isinstance(model, (str, bytes, os.PathLike)):
        problems.append(f"model is a {type(model).__name__}, and czero takes a folder: "
                        "model.save_pretrained(dir), then model=dir")
    if config is None:
        config = more.get("config_params")
    if config is None:
        config = getattr(args, "deepspeed_config", None)
    if config is None and not positional:
        problems.append("config: a file or a dictionary is needed, not None")
    for name, value in more.items():
        if name in _OF_DEEPSPEED:
            if value is not None:
                problems.append(f"{name}: {_OF_DEEPSPEED[name]}")
        elif name not in ("config_params", *_WITHOUT_EFFECT):
            problems.append(f"it has no argument {name}")
    if problems:
        raise TypeError("initialize(): " + "; ".join(problems))
    return config


def initialize(*positional: Any, model: Optional[PathLike] = None, config: Optional[Config] = None,
               seq_len: Optional[int] = None,
               device: str = "cpu", task: str = "auto", labels: Sequence[str] = (),
               freeze: Optional[str] = None, seed: int = 0, total_steps: int = 0,
               weight_decay_groups: bool = False,
               adapter: Optional[PathLike] = None,
               lora: Optional[Mapping[str, Any]] = None,
               trains_batches: bool = False, args: Any = None,
               **deepspeed: Any) -> Tuple["Engine", None, None, None]:
    """Create an engine, as deepspeed.initialize() does: `engine, _, _, _ = czero.initialize(…)`.

    model       a Hugging Face folder, or a preset such as "gpt2"
    config      a DeepSpeed config: a file or a dictionary
    seq_len     the longest row, for which memory is planned (default: the model's maximum)
    device      "cpu", "cuda" or "cuda:N" (docs/gpu.md)
    task        "auto", "causal_lm", "masked_lm", "classification" or "token_classification", the
                last two with the names of their classes in `labels`
    freeze      a regular expression: parameters whose names match are not trained
    seed        of dropout, and of weights that the folder does not have
    total_steps for schedules with "auto"; 0: unknown
    weight_decay_groups  no weight decay for biases and norms
    adapter     the folder of an adapter (docs/lora.md) to train further, the model frozen
    lora        a new adapter, as the config's "czero": {"lora": {…}}: {"rank": 16, "alpha": 32}
    trains_batches  the program trains with train_batch() alone: micro-batches of a step may go
                through each layer together (docs/offload.md, "Layer by layer")

    DeepSpeed's other three results (optimizer, data loader, schedule) are None: the config's
    optimizer and schedule are inside the engine. Its argument config_params, and args with a
    deepspeed_config, name the config as well; the others are refused, or have no effect. Under
    `czero launch -n N -- python …` all ranks call it. Nothing is allocated after the first step.
    """
    config = _ported(positional, model, config, args, deepspeed)
    total_steps = lib.integer(total_steps, "total_steps")
    assert model is not None and config is not None
    world = lib.world()
    opened = open_model(model, seq_len=seq_len, task=task, labels=labels, freeze=freeze,
                        adapter=adapter, seed=seed)
    try:
        options = engine_options(config, lora, device=device, world=world, seed=seed,
                                 total_steps=total_steps, groups_hf=weight_decay_groups,
                                 trains_batches=trains_batches)
        handle = C.engine_initialize_ex(ctypes.byref(options), opened)
        if not handle:
            raise lib.last_error()
    except BaseException:
        C.cz_model_destroy(opened)
        raise
    return Engine(lib.Handle(handle, C.engine_destroy, "engine")), None, None, None


class _Param(NamedTuple):
    shape: Tuple[int, ...]
    trainable: bool


def _array(values: ArrayLike, what: str) -> numpy.ndarray:
    """An array of numbers; what numpy cannot take (a GPU's tensor, rows of several lengths) is named."""
    if values is None:
        raise TypeError(f"{what} is missing")
    if isinstance(values, numpy.ma.MaskedArray):
        raise TypeError(f"{what}: a masked array: fill in what its mask hides")
    try:
        array = numpy.asarray(values)
        if array.dtype.kind == "O":
            array = array.astype(numpy.float64)
    except Exception as error:
        kind = ValueError if isinstance(error, ValueError) else TypeError
        raise kind(f"{what}: {error}") from None
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{what}: numbers are needed, not {array.dtype}")
    return array


def _int32(values: ArrayLike, shape: Tuple[int, ...], what: str) -> numpy.ndarray:
    given = _array(values, what)
    with numpy.errstate(invalid="ignore"):
        array = numpy.ascontiguousarray(given, dtype=numpy.int32)
    if array.shape != shape:
        raise ValueError(f"{what}: shape {array.shape}, not {shape}")
    if not numpy.array_equal(given, array):
        place = numpy.argwhere(given != array)[0]
        raise ValueError(f"{what}: {given[tuple(place)]} at {place.tolist()} is no integer of 32 bits")
    return array


_TAKEN = "input_ids, labels, attention_mask, token_type_ids and position_ids"


def _refuse_others(call: str, others: Mapping[str, Any], taken: str = _TAKEN) -> None:
    if others:
        raise TypeError(f"{call} takes {taken}, not {', '.join(map(str, others))}: leave them out")


_UNLABELLED = _TAKEN.replace("labels, ", "")


def _pointer(array: numpy.ndarray, kind: Any) -> Any:
    return array.ctypes.data_as(ctypes.POINTER(kind))


# What DeepSpeed's engines, torch's modules and optimizers have besides, and what to use here.
_ELSEWHERE = {
    "save_checkpoint(), then initialize() with another train_batch_size or micro-batch, and "
    "load_checkpoint()": "set_train_batch_size set_train_micro_batch_size",
    'set "managed_gradient_accumulation": false in the config, then every step() is a boundary':
        "set_gradient_accumulation_boundary",
    "ranks exchange gradients at the boundary alone": "no_sync allreduce_gradients",
    "the model is inside the engine: state_dict(), parameter_names(), get_parameter(), "
    "set_parameter(), predict(), hidden()":
        "module model parameters named_parameters children modules named_modules buffers "
        "named_buffers get_submodule get_input_embeddings get_output_embeddings config",
    "optimizer and schedule are inside the engine: get_parameter(name, \"exp_avg\"), get_lr(), "
    "set_lr()": "optimizer lr_scheduler basic_optimizer client_optimizer scheduler get_mom "
                "param_groups",
    "state_dict()": "module_state_dict",
    "set_parameter() for each name": "load_state_dict load_module_state_dict",
    "save_16bit_model()": "save_fp16_model",
    "export_hf()": "save_pretrained push_to_hub",
    "czero generate --model, on a folder of export_hf()": "generate",
    "backward() scales the loss itself": "scale",
    "initialize(device=…) and the config's bf16 or fp16 decide": "to cuda cpu half bfloat16 float "
        "double type device dtype",
    "initialize(freeze=…)": "requires_grad_",
    "the config's activation_checkpointing": "gradient_checkpointing_enable",
    "a layer's outputs are not seen from Python": "register_forward_hook "
        "register_forward_pre_hook register_full_backward_hook register_backward_hook apply",
    "the config's offload sections decide, before the run": "offload_states reload_states "
        "empty_partition_cache",
    "the config has it": "zero_optimization_stage zero_optimization zero_offload_optimizer "
        "zero_offload_param fp16_enabled bfloat16_enabled gradient_clipping steps_per_print "
        "optimizer_name optimizer_params scheduler_name scheduler_params dynamic_loss_scale "
        "wall_clock_breakdown memory_breakdown dump_state communication_data_type "
        "flops_profiler_enabled zero_gather_16bit_weights_on_model_save",
    "global_rank": "local_rank get_data_parallel_rank",
    "world_size": "dp_world_size",
    "loss_scale": "cur_scale",
    "nothing is compiled": "compile is_compiled",
}


class Engine(lib.Uncopied):
    """A model in training. One thread uses an engine at a time; all ranks make the same calls.

    It holds the run's memory until destroy(), the end of a `with` block, or its collection.
    """

    _instead = ("it owns the run's memory; state_dict() copies its weights, save_checkpoint() its "
                "whole state")
    _handle: Optional[lib.Handle] = None  # of one that initialize() did not create

    def __init__(self, handle: lib.Handle) -> None:
        if not isinstance(handle, lib.Handle):
            raise TypeError("czero.initialize() creates engines")
        self._handle = handle
        self._loss: Optional[numpy.float32] = None
        self._training = True
        self._said_zero_grad = False
        model = self._get(C.engine_get_model)
        self._labels = C.cz_model_labels(model)
        self._n_outputs = (C.cz_model_n_classes if self._labels in (*_OF_ROWS, _TOKEN_CLASS)
                           else C.cz_model_vocab_size)(model)
        self._width = C.cz_model_hidden_size(model)
        self._params: Dict[str, _Param] = {}
        info = lib.new(lib.ParamInfo)
        for idx in range(C.cz_model_n_params(model)):
            C.cz_model_param(model, idx, ctypes.byref(info))
            self._params[lib.text(info.name)] = _Param(tuple(info.shape[:info.ndim]),
                                                       bool(info.trainable))

    def _owned(self) -> lib.Handle:
        if self._handle is None:
            raise TypeError("czero.initialize() creates engines; this object has none")
        return self._handle

    def _call(self, call: Any, *arguments: Any) -> Any:
        return self._owned().run(call, *arguments)

    def _get(self, call: Any) -> Any:
        return self._owned().read(call)

    def __repr__(self) -> str:
        try:
            name = lib.text(C.cz_model_name(self._get(C.engine_get_model)))
            return f"<czero.Engine {name}, step {self.global_steps}, {len(self._params)} parameters>"
        except lib.DestroyedError:
            return "<czero.Engine, destroyed>"
        except (TypeError, lib.InvalidError):  # none inside, or another process's
            return "<czero.Engine>"

    def __getattr__(self, name: str) -> Any:
        of_class = getattr(type(self), name, None)
        if isinstance(of_class, property):  # of an engine that was destroyed: the same error again
            return of_class.__get__(self)
        for instead, names in _ELSEWHERE.items():
            if name in names.split():
                raise AttributeError(f"a czero engine has no {name}: {instead}")
        raise AttributeError(f"a czero engine has no {name}: help(czero.Engine) lists what it has")

    def destroy(self) -> None:
        """Release all memory and swap files; waits for a running save. May be called again."""
        if self._handle is not None:
            self._handle.destroy()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *_: Any) -> None:
        self.destroy()

    # ---- training --------------------------------------------------------------------------------

    def _batch(self, input_ids: ArrayLike, labels: Optional[ArrayLike] = None,
               attention_mask: Optional[ArrayLike] = None,
               token_type_ids: Optional[ArrayLike] = None,
               position_ids: Optional[ArrayLike] = None, *,
               micro_step: Optional[int] = None) -> Tuple[Any, List[numpy.ndarray]]:
        """A micro-batch (by default the next one), and the arrays that it points to."""
        input_ids = _array(input_ids, "input_ids")
        shape = input_ids.shape
        if len(shape) != 2:
            raise ValueError(f"input_ids: shape {shape}, not (rows, tokens)")
        arrays = {"ids": _int32(input_ids, shape, "input_ids")}
        mask = None
        if attention_mask is not None:
            mask = _int32(attention_mask, shape, "attention_mask")
            if ((mask != 0) & (mask != 1)).any():
                raise ValueError(f"attention_mask: 0 and 1 are needed, not {mask.min()} to {mask.max()}")
            arrays["key_mask"] = numpy.ascontiguousarray(mask, dtype=numpy.uint8)
        if token_type_ids is not None:
            arrays["types"] = _int32(token_type_ids, shape, "token_type_ids")
        if position_ids is not None:
            arrays["positions"] = _int32(position_ids, shape, "position_ids")
        if labels is not None and self._labels == _CLASS:
            labels = _array(labels, "labels")
            if labels.shape == (shape[0], 1):
                labels = labels[:, 0]
            arrays["labels"] = _int32(labels, shape[:1], "labels")
        elif labels is not None and self._labels in _OF_ROWS:
            targets = numpy.ascontiguousarray(_array(labels, "labels"), dtype=numpy.float32)
            if targets.size != shape[0] * self._n_outputs:
                raise ValueError(f"labels: shape {targets.shape}, not "
                                 f"({shape[0]}, {self._n_outputs})")
            arrays["targets"] = targets
        elif labels is not None:
            arrays["labels"] = _int32(labels, shape, "labels")
            if self._labels == _NEXT:  # the library's are shifted, Hugging Face's are not
                shifted = numpy.full(shape, IGNORE_LABEL, numpy.int32)
                shifted[:, :-1] = arrays["labels"][:, 1:]
                arrays["labels"] = shifted
            if self._labels == _REPLACED and attention_mask is not None:  # padding does not count
                arrays["labels"] = numpy.where(arrays["key_mask"] != 0, arrays["labels"],
                                               numpy.int32(IGNORE_LABEL))
        types = {"key_mask": ctypes.c_uint8, "targets": ctypes.c_float}
        pointers = {name: _pointer(array, types.get(name, ctypes.c_int32))
                    for name, array in arrays.items()}
        micro_step = self.micro_steps if micro_step is None else micro_step
        row = (micro_step * self.world_size + self.global_rank) \
            * self.train_micro_batch_size_per_gpu()
        batch = lib.new(lib.Batch, B=shape[0], T=shape[1], sample=row, **pointers)
        return batch, list(arrays.values())

    def forward(self, input_ids: ArrayLike, labels: Optional[ArrayLike] = None,
                attention_mask: Optional[ArrayLike] = None,
                token_type_ids: Optional[ArrayLike] = None,
                position_ids: Optional[ArrayLike] = None, **others: Any) -> numpy.float32:
        """The mean loss of this rank's micro-batch, a float32.

        Arrays are (B,T), B at most the config's micro-batch, T at most seq_len. labels are as
        Hugging Face's models take them: for language models (B,T), usually the input_ids
        themselves, -100 for what does not count; the shift by one token happens here. For
        classifiers they are (B), for those of tokens (B,T), for regression and several labels
        (B,classes) float. After eval() nothing of the run changes: no dropout, no gradients.

        A forward() without its backward() is dropped by the next one, with a warning, and so are
        earlier micro-batches of its step.
        """
        if isinstance(input_ids, Mapping) and labels is None and not others:
            return self.forward(**input_ids)
        _refuse_others("forward()", others)
        if labels is None:
            raise TypeError("forward() gives the loss, and needs labels: for logits call predict()")
        batch, _arrays = self._batch(input_ids, labels, attention_mask, token_type_ids,
                                     position_ids)
        loss = ctypes.c_float()
        call = C.engine_forward if self._training else C.engine_eval
        self._call(call, ctypes.byref(batch), ctypes.byref(loss))
        result = numpy.float32(loss.value)
        self._loss = result if self._training else None
        return result

    def __call__(self, *args: Any, **kwargs: Any) -> numpy.float32:
        """forward(); a single dictionary gives its arguments: engine(batch)."""
        if len(args) == 1 and isinstance(args[0], Mapping):
            return self.forward(**{**args[0], **kwargs})
        return self.forward(*args, **kwargs)

    def predict(self, input_ids: ArrayLike, attention_mask: Optional[ArrayLike] = None,
                token_type_ids: Optional[ArrayLike] = None,
                position_ids: Optional[ArrayLike] = None, **others: Any) -> numpy.ndarray:
        """The logits, float32: (B,T,vocabulary), (B,classes) of a classifier of rows, (B,T,classes)
        of one of tokens, (B,T) of a discriminator."""
        if isinstance(input_ids, Mapping):
            return self.predict(**{**input_ids, **others})
        _refuse_others("predict()", others, _UNLABELLED)
        batch, arrays = self._batch(input_ids, None, attention_mask, token_type_ids, position_ids)
        shape = arrays[0].shape[:1] if self._labels in _OF_ROWS else arrays[0].shape
        if self._labels != _REPLACED:  # one logit of each token
            shape += (self._n_outputs,)
        logits = numpy.empty(shape, numpy.float32)
        self._call(C.engine_predict, ctypes.byref(batch), logits.ctypes.data)
        return logits

    def hidden(self, input_ids: ArrayLike, attention_mask: Optional[ArrayLike] = None,
               token_type_ids: Optional[ArrayLike] = None,
               position_ids: Optional[ArrayLike] = None, *, pool: str = "none",
               normalize: bool = False, **others: Any) -> numpy.ndarray:
        """The last hidden states (B,T,width), float32, as transformers' last_hidden_state.

        pool makes one vector of each row, (B,width): "cls" of its first token, "mean" of its
        tokens, "last" of its last one; attention_mask says which they are. A row without tokens
        gives zeros. normalize divides vectors by their lengths.
        """
        if isinstance(input_ids, Mapping):
            return self.hidden(**{**input_ids, **others}, pool=pool, normalize=normalize)
        _refuse_others("hidden()", others, _UNLABELLED)
        if pool not in _POOLS:
            raise ValueError(f'pool "{pool}": one of {", ".join(_POOLS)} is needed')
        batch, arrays = self._batch(input_ids, None, attention_mask, token_type_ids, position_ids)
        states = numpy.empty((*arrays[0].shape, self._width), numpy.float32)
        self._call(C.engine_hidden, ctypes.byref(batch), states.ctypes.data)
        mask = (numpy.ones(arrays[0].shape, bool) if attention_mask is None
                else numpy.asarray(attention_mask) != 0)
        if pool == "mean":
            n_tokens = numpy.maximum(mask.sum(1), 1)[:, None]
            sums = (states * mask[:, :, None]).sum(1, dtype=numpy.float64)
            states = (sums / n_tokens).astype(numpy.float32)
        elif pool != "none":
            first = mask.argmax(1)
            place = first if pool == "cls" else mask.shape[1] - 1 - mask[:, ::-1].argmax(1)
            states = states[numpy.arange(len(states)), place] * mask.any(1)[:, None]
        if normalize:
            states /= numpy.maximum(numpy.linalg.norm(states, axis=-1, keepdims=True), 1e-12)
        return states

    def backward(self, loss: Optional[float] = None) -> None:
        """Add the gradients of the last forward()'s loss. Another value is refused: gradients are of
        that loss alone, and the engine divides by the accumulation steps itself."""
        if loss is not None and self._loss is not None:
            same = loss == self._loss or (math.isnan(loss) and math.isnan(self._loss))
            if not same:
                raise ValueError("backward() takes the loss that the last forward() returned; "
                                 "gradients of other functions of it are not computed")
        self._train(C.engine_backward)
        self._loss = None

    def step(self) -> None:
        """Count a micro-step; at the accumulation boundary reduce, clip and apply the gradients.
        A step that an overflow skips is no error: was_step_applied()."""
        self._train(C.engine_step)

    def _train(self, call: Any) -> None:
        try:
            self._call(call)
        except lib.InvalidError as error:
            if self._training or " needs a " not in str(error):
                raise
            raise lib.InvalidError("the engine is in eval(): call engine.train() before the forward() "
                                   f"to train on ({error})", error.status) from None

    def zero_grad(self, set_to_none: bool = True) -> None:  # pylint: disable=unused-argument
        """Forget the step that has begun: a forward() without its backward(), and the gradients and
        micro-steps of its earlier micro-batches. Not needed otherwise: step() clears gradients at
        the accumulation boundary."""
        before = self.micro_steps
        self._call(C.engine_discard_step)
        self._loss = None
        if self.micro_steps < before and not self._said_zero_grad:
            self._said_zero_grad = True
            lib.log.warning("zero_grad() drops the gradients of %d micro-batches: step() clears "
                            "gradients itself at the accumulation boundary (logged once)",
                            before - self.micro_steps)

    @staticmethod
    def _source(call: str, data: Any) -> Callable[[], Any]:
        """What gives the next micro-batch."""
        if data is None:
            raise TypeError(f"{call} needs data: an iterator of micro-batches, or a function")
        if isinstance(data, Mapping) or hasattr(data, "ndim"):
            raise TypeError(f"{call}: data gives micro-batches, and this {type(data).__name__} is one: "
                            "pass [batch]")
        if not isinstance(data, AnIterable) and not callable(data):
            raise TypeError(f"{call}: data is an iterator of micro-batches or a function, not "
                            f"{type(data).__name__}")
        return iter(data).__next__ if isinstance(data, AnIterable) else data

    def _item(self, call: str, item: Any, micro_step: Optional[int] = None) -> Any:
        """A micro-batch that a program's data gives, as _batch() does."""
        if isinstance(item, Mapping):
            named = dict(zip(map(str, item), item.values()))
            known = {name: named.pop(name) for name in _TAKEN.replace(" and", ",").split(", ")
                     if name in named}
            _refuse_others(f"{call}: a micro-batch", named)
            if known.get("labels") is None:
                raise TypeError(f"{call}: a micro-batch needs labels")
            return self._batch(**known, micro_step=micro_step)
        if not isinstance(item, (tuple, list)) or len(item) < 2:
            raise TypeError(f"{call}: a micro-batch is a dictionary, or a tuple (input_ids, labels), "
                            f"not {type(item).__name__}")
        return self._batch(*item, micro_step=micro_step)

    def train_batch(self, data: Union[Iterable[MicroBatch], Callable[[], MicroBatch], None] = None, *,
                    data_iter: Optional[Iterable[MicroBatch]] = None) -> numpy.float32:
        """A whole step, as DeepSpeed's train_batch(): gradient_accumulation_steps micro-batches
        forward and backward, then the update. Returns their mean loss over all ranks.

        data gives micro-batches: an iterator, which continues where it is, another iterable, which
        begins anew, or a function. Each is a dictionary or a tuple of forward()'s arguments. An
        exception in it (StopIteration at its end) comes out of this call; no rank makes the step
        then, and the engine is as before. data_iter is DeepSpeed's name of data.
        """
        take = self._source("train_batch()", data_iter if data is None else data)
        first, raised = self.micro_steps, []  # type: int, List[BaseException]
        held: List[Any] = []  # what the engine reads

        def give(_: Any, out: Any) -> int:
            try:
                held.append(self._item("train_batch()", take(), first + len(held)))
                out[0] = held[-1][0]
                return lib.OK
            except BaseException as error:  # pylint: disable=broad-except
                raised.append(error)
                is_end = isinstance(error, StopIteration)
                reason = "no more data" if is_end else f"{type(error).__name__}: {error}"
                return C.cz_error(lib.NOT_FOUND if is_end else lib.INVALID, b"%s", reason.encode())

        loss = ctypes.c_float()
        try:
            self._call(C.engine_train_batch, lib.NextBatch(give), None, ctypes.byref(loss))
        except lib.Error:
            if raised:
                raise raised[0] from None
            raise
        self._loss = None
        return numpy.float32(loss.value)

    def eval_batch(self, data: Union[Iterable[MicroBatch], Callable[[], MicroBatch], None] = None, *,
                   data_iter: Optional[Iterable[MicroBatch]] = None) -> numpy.float32:
        """The mean loss of gradient_accumulation_steps micro-batches over all ranks, as DeepSpeed's
        eval_batch(): nothing of the run changes. data is train_batch()'s."""
        n = self.gradient_accumulation_steps()
        with self._together():
            take = self._source("eval_batch()", data_iter if data is None else data)
            batches = [self._item("eval_batch()", take()) for _ in range(n)]
        loss, mean, total = ctypes.c_float(), ctypes.c_double(0), ctypes.c_double()
        for batch, _arrays in batches:
            self._call(C.engine_eval, ctypes.byref(batch), ctypes.byref(loss))
            mean.value += loss.value / (n * self.world_size)
        self._call(C.engine_gather_metrics, ctypes.byref(mean), 1, ctypes.byref(total))
        return numpy.float32(total.value)

    def train(self, mode: bool = True) -> "Engine":
        """Let forward() train, as it does at first."""
        self._training = mode
        return self

    def eval(self) -> "Engine":
        """Let forward() only evaluate."""
        return self.train(False)

    # ---- state of the run, under DeepSpeed's names -------------------------------------------------

    @property
    def global_steps(self) -> int:
        """Accumulation boundaries so far, skipped steps included."""
        return self._get(C.engine_get_global_steps)

    @property
    def global_samples(self) -> int:
        return self._get(C.engine_get_global_samples)

    @property
    def skipped_steps(self) -> int:
        return self._get(C.engine_get_skipped_steps)

    @property
    def micro_steps(self) -> int:
        return self._get(C.engine_get_micro_steps)

    @property
    def world_size(self) -> int:
        return self._get(C.engine_get_world_size)

    @property
    def global_rank(self) -> int:
        return self._get(C.engine_get_rank)

    @property
    def loss_scale(self) -> float:
        """1 without fp16."""
        return self._get(C.engine_get_loss_scale)

    def train_batch_size(self) -> int:
        return self._get(C.engine_get_train_batch)

    def train_micro_batch_size_per_gpu(self) -> int:
        return self._get(C.engine_get_micro_batch)

    def gradient_accumulation_steps(self) -> int:
        return self._get(C.engine_get_accumulation)

    def is_gradient_accumulation_boundary(self) -> bool:
        return self._get(C.engine_is_gradient_accumulation_boundary)

    def was_step_applied(self) -> bool:
        return self._get(C.engine_was_step_applied)

    def get_lr(self) -> List[float]:
        """The rate that the next step uses, as a list of one, as DeepSpeed has it."""
        return [self._get(C.engine_get_lr)]

    def set_lr(self, lr: Union[float, Sequence[float]]) -> None:
        """Set the rate until the schedule's next step: a number, or a list of one as get_lr() gives."""
        rate = lr[0] if isinstance(lr, (list, tuple)) and len(lr) == 1 else lr
        if isinstance(rate, (str, bytes)) or not hasattr(rate, "__float__"):
            raise TypeError(f"set_lr({lr!r}): a number is needed, or a list of one")
        self._call(C.engine_set_lr, float(rate))  # type: ignore[arg-type]

    def get_global_grad_norm(self) -> Optional[float]:
        """Of the last boundary, before clipping; None: none yet; infinity: that step was skipped."""
        norm = self._get(C.engine_get_global_grad_norm)
        return None if math.isnan(norm) else norm

    # ---- tensors ---------------------------------------------------------------------------------

    def parameter_names(self, trainable_only: bool = False) -> List[str]:
        return [name for name, p in self._params.items() if p.trainable or not trainable_only]

    def _shape(self, name: str) -> Tuple[int, ...]:
        if name not in self._params:
            near = difflib.get_close_matches(str(name), self._params, 1)
            raise lib.NoParameterError(f"no parameter is named {name!r}"
                                       + (f"; did you mean {near[0]!r}?" if near else
                                          ": parameter_names() lists them"), "CZ_NOTFOUND")
        return self._params[name].shape

    def get_parameter(self, name: str, what: str = "weight") -> numpy.ndarray:
        """A whole tensor in fp32, gathered from all ranks: "weight" (the master), "grad" (between
        backward() and the boundary's step()) or a state of the optimizer ("exp_avg")."""
        array = numpy.empty(self._shape(name), numpy.float32)
        self._call(C.engine_param_get, name.encode(), what.encode(), array.ctypes.data,
                           array.size)
        return array

    def set_parameter(self, name: str, value: ArrayLike, what: str = "weight") -> None:
        array = numpy.ascontiguousarray(_array(value, name), dtype=numpy.float32)
        if array.shape != self._shape(name):
            raise ValueError(f"{name}: shape {array.shape}, not {self._shape(name)}")
        self._call(C.engine_param_set, name.encode(), what.encode(), array.ctypes.data,
                           array.size)

    def state_dict(self) -> Dict[str, numpy.ndarray]:
        """All weights in fp32, by Hugging Face's names; a tied weight once."""
        return {name: self.get_parameter(name) for name in self._params}

    # ---- checkpoints -------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _together(self) -> Iterator[None]:
        """What fails here on one rank fails on all: the others do not wait for its save."""
        failed: Optional[Exception] = None
        try:
            yield
        except Exception as error:
            failed = error
        if self.world_size > 1:
            if failed is not None:
                C.cz_error(lib.INVALID, b"%s", str(failed).encode("utf-8", "replace"))
            try:
                C.engine_world_agree(lib.world(), lib.INVALID if failed else lib.OK, None)
            except lib.Error:
                if failed is None:
                    raise
        if failed is not None:
            raise failed

    def save_checkpoint(self, save_dir: PathLike, tag: Optional[Union[str, int]] = None,
                        client_state: Optional[Mapping[str, Any]] = None,
                        save_latest: bool = True,
                        exclude_frozen_parameters: bool = False,
                        weights_only: bool = False) -> bool:
        """Save to save_dir/tag (None: "global_step{N}") in DeepSpeed's format; durable on return.
        weights_only leaves out the optimizer's states: load it with load_module_only. client_state is merged into the checkpoint's dictionary: docs/python.md has the types that
        come back equal; others are a TypeError, and nothing is written."""
        raw = name = folder = None
        with self._together():
            folder, name = lib.path(save_dir), lib.tag_text(tag)
            raw = client_state_module.encode(client_state) if client_state else None
        options = lib.new(lib.SaveOptions, tag=name, exclude_frozen=exclude_frozen_parameters,
                          keep_latest=not save_latest, weights_only=weights_only,
                          client_state_pickle=raw,
                          client_state_nbytes=len(raw or b""))
        self._call(C.engine_save_checkpoint_ex, folder, ctypes.byref(options))
        return True

    def load_checkpoint(self, load_dir: PathLike, tag: Optional[Union[str, int]] = None,
                        load_module_strict: bool = True, load_optimizer_states: bool = True,
                        load_lr_scheduler_states: bool = True,
                        load_module_only: bool = False) -> Tuple[str, Dict[str, Any]]:
        """Resume from load_dir/tag (None: the one that `latest` names), of czero or DeepSpeed, of any
        stage and number of ranks. Returns the tag's folder and the client state. Unlike DeepSpeed,
        a folder without a checkpoint is a NotFoundError."""
        folder = name = None
        with self._together():
            folder, name = lib.path(load_dir), lib.tag_text(tag)
        options = lib.new(lib.LoadOptions, tag=name, lenient=not load_module_strict,
                          pickles_client_state=True,
                          no_optimizer_states=not load_optimizer_states,
                          no_lr_scheduler=not load_lr_scheduler_states,
                          module_only=load_module_only)
        result = lib.new(lib.LoadResult)
        try:
            self._call(C.engine_load_checkpoint_ex, folder, ctypes.byref(options),
                                        ctypes.byref(result))
            raw = ctypes.string_at(result.client_state_pickle, result.client_state_nbytes)
            return lib.text(result.tag_dir), client_state_module.decode(raw)
        finally:
            C.cz_load_result_free(ctypes.byref(result))

    def save_16bit_model(self, save_dir: PathLike, save_filename: str = "pytorch_model.bin",
                         exclude_frozen_parameters: bool = False) -> bool:
        """The weights in the model's dtype as one file for torch.load(). False: nothing is saved
        (stage 3 without stage3_gather_16bit_weights_on_model_save)."""
        saved = ctypes.c_bool()
        folder = name = None
        with self._together():
            folder, name = lib.path(save_dir), lib.path(save_filename)
        self._call(C.engine_save_16bit_model, folder, name, exclude_frozen_parameters,
                   ctypes.byref(saved))
        return saved.value

    def export_hf(self, folder: PathLike, dtype: str = "fp32") -> None:
        """Write a Hugging Face folder that transformers loads; dtype "fp32", "bf16" or "fp16"."""
        raw = number = None
        with self._together():
            raw, number = lib.path(folder), dtype_number(dtype)
        self._call(C.engine_export_hf, raw, number)
