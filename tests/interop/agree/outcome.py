"""What a comparison ends in, and the tools of czero that all areas run."""
import dataclasses
import os
import pathlib
import subprocess

AGREED, DISAGREED, REFUSED = "agreed", "disagreed", "refused"


@dataclasses.dataclass
class Outcome:
    """One case. `why` is empty where the two agree; a refusal's is czero's own sentence."""
    area: str
    case: str
    verdict: str
    why: str = ""


def agreed(area, case):
    return Outcome(area, case, AGREED)


def disagreed(area, case, why):
    return Outcome(area, case, DISAGREED, str(why))


def refused(area, case, why):
    return Outcome(area, case, REFUSED, str(why))


class Tools:
    """The programs of a build folder. Each call has a time limit, so that a hang is a finding."""

    def __init__(self, build, json_suite=None):
        self.build = pathlib.Path(build).resolve()
        self.json_suite = json_suite

    def run(self, *arguments, program="czero", seconds=120, **options):
        command = [str(self.build / program), *map(str, arguments)]
        environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
        options.setdefault("text", True)
        try:
            return subprocess.run(command, capture_output=True, timeout=seconds, env=environment, **options)
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(command, 124, "", f"{program} did not end in {seconds} s")


def sentence(done):
    """The line of stderr that says what was wrong."""
    lines = [line for line in done.stderr.strip().splitlines() if line.strip()]
    errors = [line for line in lines if "ERROR" in line or line.startswith(("czero", "zero_to_fp32"))]
    return (errors or lines or [f"exit status {done.returncode} without a sentence"])[-1]
