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

from ._library import C as _C
from ._library import CorruptError, Error, InvalidError, NotFoundError, OutOfMemoryError, text
from .client_state import UnknownObject
from .checkpoints import Consolidated, load_state_dict_from_zero_checkpoint, zero_to_fp32
from .engine import Engine, initialize
from .plans import Plan, plan
from .tokenizer import Tokenizer

__version__ = text(_C.cz_version())
__all__ = ["Consolidated", "CorruptError", "Engine", "Error", "InvalidError", "NotFoundError",
           "OutOfMemoryError", "Plan", "Tokenizer", "UnknownObject", "initialize",
           "load_state_dict_from_zero_checkpoint", "plan", "zero_to_fp32"]
