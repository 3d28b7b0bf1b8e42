"""czero: trains transformer models from a DeepSpeed config, in C; here its calls for Python.

    import czero
    engine, _, _, _ = czero.initialize(model="gpt2", config="ds_config.json", seq_len=256)
    for input_ids in batches:                       # integer arrays (B, T)
        loss = engine(input_ids, labels=input_ids)
        engine.backward(loss)
        engine.step()
    engine.save_checkpoint("runs/a")
    weights = czero.load_state_dict_from_zero_checkpoint("runs/a")

Arrays are numpy's. Errors are czero.Error with the library's sentence; warnings and what a config asks to
be printed come through logging.getLogger("czero"). docs/python.md has the details.
"""

from typing import NoReturn as _NoReturn

from ._library import C as _C
from ._library import CorruptError, Error, InvalidError, NotFoundError, OutOfMemoryError, text
from .client_state import UnknownObject
from .checkpoints import Consolidated, get_fp32_state_dict_from_zero_checkpoint
from .checkpoints import load_state_dict_from_zero_checkpoint, zero_to_fp32
from .engine import Engine, initialize
from .plans import Plan, plan
from .tokenizer import Tokenizer

_ELSEWHERE = {
    "init_distributed": "initialize() joins the ranks that czero launch or mpirun started",
    "add_config_arguments": "give the file to initialize(config=…)",
    "init_inference": "czero generate and czero predict are commands",
    "zero": 'the config\'s "zero_optimization" decides, and models are folders',
    "DeepSpeedEngine": "czero.Engine", "comm": "engine.global_rank and engine.world_size",
    "tune": "czero tune is a command, and czero.plan() plans one config",
}


def __getattr__(name: str) -> _NoReturn:
    instead = f": {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
    raise AttributeError(f"module 'czero' has no attribute {name!r}{instead}")


__version__ = text(_C.cz_version())
__all__ = ["Consolidated", "CorruptError", "Engine", "Error", "InvalidError", "NotFoundError",
           "OutOfMemoryError", "Plan", "Tokenizer", "UnknownObject",
           "get_fp32_state_dict_from_zero_checkpoint", "initialize",
           "load_state_dict_from_zero_checkpoint", "plan", "zero_to_fp32"]
