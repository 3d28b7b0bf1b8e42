#!/usr/bin/env python3
"""czero beside the installed peers on random material, in one command.

  conformance.py BUILD [--seed S] [--cases N] [AREA...]   compare; a table at the end; exit code 1 if anything disagrees
  conformance.py --make FOLDER                            the recordings in fixtures/checkpoints/resume

Run with the python that scripts/peers.sh prints. BUILD is a build folder. Areas:
  resume   DeepSpeed trains on 1 to 4 ranks with random optimizers, schedules, stages 0 to 3 and elastic checkpoints,
           and saves on the way; czero resumes and follows the run that was not interrupted (about 10 s a case; the
           first run compiles DeepSpeed's CPU kernels, which takes minutes)
  schedules  learning-rate schedules of DeepSpeed, torch and transformers with random and with wrong parameters, rate by
           rate to the last bit (20 cases a second)
The seed is printed; the same seed gives the same cases.
"""
import argparse
import collections
import pathlib
import random
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from agree import outcome, resume, schedules

AREAS = {"resume": resume.run, "schedules": schedules.run}


def table(outcomes):
    print(f"\n{'area':10} {'agreed':>7} {'disagreed':>10} {'refused':>8}")
    for area in sorted({o.area for o in outcomes}):
        n = collections.Counter(o.verdict for o in outcomes if o.area == area)
        print(f"{area:10} {n[outcome.AGREED]:7} {n[outcome.DISAGREED]:10} {n[outcome.REFUSED]:8}")
    for why, n in collections.Counter(o.why for o in outcomes if o.verdict == outcome.REFUSED).most_common():
        print(f"refused {n} times: {why}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path, nargs="?")
    parser.add_argument("areas", nargs="*", metavar="AREA")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    parser.add_argument("--cases", type=int, default=100, help="of each area")
    parser.add_argument("--make", type=pathlib.Path)
    arguments = parser.parse_args()
    if arguments.make:
        resume.make(arguments.make)
        return
    unknown = [a for a in arguments.areas if a not in AREAS]
    if not arguments.build or unknown:
        parser.error(f"no area {unknown[0]}" if unknown else "BUILD is needed")
    tools, outcomes = outcome.Tools(arguments.build), []
    print(f"seed {arguments.seed}", flush=True)
    for area in arguments.areas or AREAS:
        for o in AREAS[area](tools, arguments.seed, arguments.cases):
            outcomes.append(o)
            if o.verdict != outcome.AGREED:
                print(f"{o.area}: {o.case}: {o.verdict}: {o.why}", flush=True)
    table(outcomes)
    sys.exit(1 if any(o.verdict == outcome.DISAGREED for o in outcomes) else 0)


if __name__ == "__main__":
    main()
