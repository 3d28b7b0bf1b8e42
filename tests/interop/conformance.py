#!/usr/bin/env python3
"""czero beside the installed peers on random material, in one command.

  conformance.py BUILD [AREA...] [--seed S] [--count N]   compare; a table at the end; exit code 1 if anything disagrees
  conformance.py --make FOLDER                            the recordings in fixtures/checkpoints/resume

Run with the python that scripts/peers.sh prints. BUILD is a build folder. Areas:
  adapters     PEFT's adapters of decoders and encoders with random settings, both directions (about 8 s a case)
  activations  transformers' activations and their gated products, forward and backward, in three types
  checkpoints  what DeepSpeed saves of transformers' and torch's models through fsck, inspect, zero_to_fp32, export and
               ds_to_universal (about 8 s a case)
  formats      safetensors, JSON and .pt files, good and damaged, beside their reference readers
  optimizers   twelve steps of torch's and DeepSpeed's optimizers with random settings
  resume       DeepSpeed trains on 1 to 4 ranks with random optimizers, schedules, parameter groups, stages 0 to 3, states
               on NVMe and elastic checkpoints, and saves on the way; czero resumes, also through a universal checkpoint
               at another stage and number of ranks, and follows the run that was not interrupted; in a third of the
               cases czero saves and DeepSpeed resumes; then LLaMA from DeepSpeed to czero and back, mostly at stage 3 (about 10 s a case)
  schedules    learning-rate schedules of DeepSpeed, torch and transformers with random and with wrong parameters, rate by
               rate to the last bit
  templates    conversations under the chat templates of the installed trl and transformers: ids, and what is trained
  tokenizers   ids, rows and decoded texts of the fixtures' tokenizers, of vocab.json with random special tokens, and of
               random tokenizer.json files
The first run compiles DeepSpeed's CPU kernels, which takes minutes. Where scripts/peers.sh --onebit has made DeepSpeed
0.16.9's environment, checkpoints and resume run there, too. The seed is printed; the same seed gives the same cases.
"""
import argparse
import collections
import dataclasses
import json
import os
import pathlib
import random
import subprocess
import sys

sys.dont_write_bytecode = True
os.environ["OMP_NUM_THREADS"] = "1"  # ranks are forked, and OpenMP's threads do not survive that
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from agree import activations, adapters, checkpoints, formats, optimizers, outcome, resume, schedules, templates, tokenizers

# How many cases of each area a run has: about twenty minutes on two cores.
COUNTS = {activations: 300, adapters: 26, checkpoints: 60, formats: 900, optimizers: 150, resume: 40, schedules: 400, templates: 5, tokenizers: 300}
AREAS = {module.AREA: (module, n) for module, n in COUNTS.items()}
OLDER = "0.16.9"
IN_OLDER = ("checkpoints", "resume")


def table(outcomes):
    print(f"\n{'area':20} {'agreed':>7} {'disagreed':>10} {'refused':>8}")
    for area in sorted({o.area for o in outcomes}) + [""]:
        n = collections.Counter(o.verdict for o in outcomes if area in ("", o.area))
        print(f"{area or 'all':20} {n[outcome.AGREED]:7} {n[outcome.DISAGREED]:10} {n[outcome.REFUSED]:8}")
    for (area, why), n in collections.Counter((o.area, o.why) for o in outcomes if o.verdict == outcome.REFUSED).most_common():
        print(f"refused {n} times, {area}: {why}")


def in_older(arguments, area, count):
    """The same area with the other environment's DeepSpeed, in a process of its own."""
    command = [arguments.older, __file__, arguments.build, area, "--seed", arguments.seed, "--count", count, "--lines"]
    kernels = pathlib.Path.home() / ".cache" / f"torch_extensions-{OLDER}"  # the two versions' have the same names
    process = subprocess.Popen([str(a) for a in command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                               env={**os.environ, "TORCH_EXTENSIONS_DIR": str(kernels)})
    for line in process.stdout:
        if line.startswith("{"):
            yield outcome.Outcome(**json.loads(line))
    if process.wait() not in (0, 1):
        yield outcome.disagreed(f"{area} {OLDER}", "the whole area", f"exit status {process.returncode}")


def compare(arguments):
    tools = outcome.Tools(arguments.build, arguments.json_suite)
    for name in arguments.areas or AREAS:
        module, count = AREAS[name]
        yield from module.run(tools, arguments.seed, arguments.count or count)
        if name in IN_OLDER and arguments.older.exists():
            older = arguments.count or max(count // 3, 1)
            yield from (dataclasses.replace(o, area=f"{name} {OLDER}") for o in in_older(arguments, name, older))
        elif name in IN_OLDER and not arguments.lines:
            print(f"{name}: no DeepSpeed {OLDER} ({arguments.older}): scripts/peers.sh --onebit makes it", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path, nargs="?")
    parser.add_argument("areas", nargs="*", metavar="AREA")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    parser.add_argument("--count", type=int, help="of each area, instead of what suits it")
    parser.add_argument("--json-suite", type=pathlib.Path, metavar="FOLDER", help="test_parsing of JSONTestSuite")
    parser.add_argument("--older", type=pathlib.Path, default=pathlib.Path(f"{sys.prefix}-{OLDER}/bin/python"),
                        metavar="PYTHON", help=f"with DeepSpeed {OLDER}")
    parser.add_argument("--lines", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--make", type=pathlib.Path)
    arguments = parser.parse_intermixed_args()
    if arguments.make:
        resume.make(arguments.make)
        return
    unknown = [a for a in arguments.areas if a not in AREAS]
    if not arguments.build or unknown:
        parser.error(f"no area {unknown[0]}" if unknown else "BUILD is needed")
    outcomes = []
    print(f"seed {arguments.seed}", flush=True)
    for o in compare(arguments):
        outcomes.append(o)
        if arguments.lines:
            print(json.dumps(dataclasses.asdict(o)), flush=True)
        elif o.verdict != outcome.AGREED:
            print(f"{o.area}: {o.case}: {o.verdict}: {o.why}", flush=True)
    if not arguments.lines:
        table(outcomes)
    sys.exit(1 if any(o.verdict == outcome.DISAGREED for o in outcomes) else 0)


if __name__ == "__main__":
    main()
