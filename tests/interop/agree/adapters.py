"""Adapters of PEFT beside czero's, with random settings: models/lora_oracle.py, one case after the other. A decoder's goes through logits,
gradients, twenty losses, and the adapter that czero exports in PEFT; an encoder's through logits and gradients."""
import pathlib
import random
import sys
import tempfile

from . import outcome

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "models"))
AREA = "adapters"


def run(tools, seed, n):
    import lora_oracle
    families = [*lora_oracle.FAMILIES, *lora_oracle.ENCODERS, *(f"{name}:mlm" for name in lora_oracle.ENCODERS)]
    for i in range(n):
        rng = random.Random(f"{seed} {i}")
        family, dora = families[i % len(families)], rng.random() < 0.3
        with tempfile.TemporaryDirectory() as folder:
            case = lora_oracle.Case(family, dora, rng, tools.build / "czero", folder)
            try:
                case.check()
            except Exception as failure:  # PEFT's, of settings that do not go together
                yield outcome.refused(AREA, family, f"{type(failure).__name__}: {str(failure).splitlines()[0]}")
                continue
        name = f"{family} {i}: {case.settings}"
        yield outcome.disagreed(AREA, name, "; ".join(case.complaints)) if case.complaints else outcome.agreed(AREA, name)
