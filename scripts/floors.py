"""Run the test floors on every ComfyUI tree that is there: `python -m scripts.floors [FLOOR …]`.

Floors that run ComfyUI run once for each tree (`scripts/trees.py`); each floor is a process of its own, because
importing ComfyUI changes the interpreter for good. As many run side by side as there are cores, `LAYERWISE_JOBS` at
most; the browser floor runs alone, since a person's clicks have time limits that a busy machine does not keep.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from . import trees
from .places import ROOT, shown
from .problem import Problem, run

EVERY_TREE = ("sim", "comfy", "server")
"""Floors that run ComfyUI, the longest first: what takes longest must not begin last."""

ALONE = ("browser",)
FLOORS = (*EVERY_TREE, "unit", *ALONE)
_COUNTS = re.compile(r"(\d+) (passed|failed|skipped|error)")


@dataclass(frozen=True)
class Job:
    """One floor on one tree."""

    floor: str
    on: trees.Runnable

    @property
    def name(self) -> str:
        return f"tests/{self.floor}" + (f" on {self.on.name}" if self.floor in EVERY_TREE else "")


@dataclass(frozen=True)
class Outcome:
    """What came of a job."""

    job: Job
    output: str
    code: int
    seconds: float

    @property
    def counts(self) -> Counter[str]:
        """How many tests passed, failed, …: from the last line of the test runner."""
        last = self.output.strip().splitlines()[-1:]
        found = _COUNTS.findall(last[0]) if last else []
        return Counter({what: int(number) for number, what in found})

    @property
    def passed(self) -> bool:
        return self.code == 0 and self.counts["passed"] > 0


def main(arguments: Sequence[str]) -> None:
    floors = arguments or FLOORS
    if unknown := [floor for floor in floors if floor not in FLOORS]:
        raise Problem(f"there is no floor “{unknown[0]}”; there are {', '.join(FLOORS)}.")
    runnable, left_out = trees.prepare()
    print(f"Trees: {', '.join(f'{r.name} ({shown(r.tree)})' for r in runnable)}", flush=True)
    outcomes = list(_run_all(jobs(floors, runnable)))
    print("\nWhat ran:")
    for outcome in outcomes:
        print(f"  {_line(outcome)}")
    for sentence in left_out:
        print(f"  not run: {sentence}")
    if len(runnable) == 1:
        print(f"  not run: dynamic VRAM and newer ComfyUI versions; no tree in {trees.folder()}")
    total = sum((outcome.counts for outcome in outcomes), Counter[str]())
    print(f"{total['passed']} passed, {total['failed'] + total['error']} failed, {total['skipped']} skipped")
    if failed := [outcome.job.name for outcome in outcomes if not outcome.passed]:
        raise Problem(f"failed: {', '.join(failed)}")


def jobs(floors: Iterable[str], runnable: Sequence[trees.Runnable]) -> list[Job]:
    """Return what has to be run, in the order in which to begin."""
    wanted = [floor for floor in FLOORS if floor in set(floors)]
    return [Job(floor, on) for floor in wanted for on in (runnable if floor in EVERY_TREE else runnable[:1])]


def _run_all(wanted: Sequence[Job]) -> Iterable[Outcome]:
    at_once = max(1, int(os.environ.get("LAYERWISE_JOBS") or os.cpu_count() or 1))
    with ThreadPoolExecutor(at_once) as pool:
        try:
            for done in as_completed([pool.submit(_run, job) for job in wanted if job.floor not in ALONE]):
                yield _told(done.result())
        except BaseException:
            pool.shutdown(cancel_futures=True)  # Ctrl-C begins no more
            raise
    for job in wanted:
        if job.floor in ALONE:
            yield _told(_run(job))


def _run(job: Job) -> Outcome:
    begun = time.monotonic()
    done = subprocess.run(
        [str(job.on.python), "-m", "pytest", "-q", f"tests/{job.floor}"],
        cwd=ROOT,
        env=os.environ | {"COMFYUI_PATH": str(job.on.tree)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    return Outcome(job, done.stdout, done.returncode, time.monotonic() - begun)


def _told(outcome: Outcome) -> Outcome:
    print(f"\n== {outcome.job.name}\n{outcome.output.rstrip()}", flush=True)
    return outcome


def _line(outcome: Outcome) -> str:
    counts = (
        ", ".join(f"{number} {what}" for what, number in outcome.counts.items()) or f"exit {outcome.code}"
    )
    return (
        f"{'ok    ' if outcome.passed else 'FAILED'} {outcome.job.name}: {counts} in {outcome.seconds:.0f} s"
    )


if __name__ == "__main__":
    run(lambda: main(sys.argv[1:]))
