"""Take safety lines out, one at a time, and see whether a test notices: `python -m scripts.mutants [NAME …]`.

`mutants.yaml` names them: a line of a file, what to put there instead (nothing, unless said), and the tests that should
see it. Each is tried in a copy of the repository. A mutant that survives means that a test is missing, or that the
line does nothing and can go. Takes an hour; run by hand.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import Any

import yaml

from . import trees
from .places import ROOT
from .problem import Problem, run

LIST = Path(__file__).with_suffix(".yaml")
DYNAMIC = "comfy/memory_management.py"
"""Only a ComfyUI that can page weights in by itself has this file."""


@dataclass(frozen=True)
class Mutant:
    """One line that is taken out."""

    name: str
    file: str
    line: str
    instead: str
    tests: tuple[str, ...]
    dynamic: bool

    def apply(self, folder: Path) -> None:
        """Put the other line into a copy of the repository.

        Raises:
            Problem: the line is not there, or more than once.
        """
        path = folder / self.file
        text = path.read_text(encoding="utf-8")
        found = re.findall(rf"^( *){re.escape(self.line)}$", text, re.MULTILINE)
        if len(found) != 1:
            raise Problem(f"“{self.name}”: its line is {len(found)} times in {self.file}: {self.line}")
        changed = text.replace(f"\n{found[0]}{self.line}\n", f"\n{found[0]}{self.instead}\n")
        path.write_text(changed, encoding="utf-8")


@dataclass(frozen=True)
class Tried:
    """What came of a mutant: the first test that failed, or None when it survived."""

    mutant: Mutant
    caught_by: str | None
    seconds: float


def mutants() -> list[Mutant]:
    """Read the list."""
    listed: dict[str, list[dict[str, Any]]] = yaml.safe_load(LIST.read_text(encoding="utf-8"))
    return [
        Mutant(
            name=entry["name"],
            file=file,
            line=entry["line"],
            instead=entry.get("instead", "pass"),
            tests=tuple(shlex.split(entry["tests"])),
            dynamic=entry.get("dynamic", False),
        )
        for file, entries in listed.items()
        for entry in entries
    ]


def main(names: Sequence[str]) -> int:
    chosen = [mutant for mutant in mutants() if not names or mutant.name in names]
    if unknown := set(names) - {mutant.name for mutant in chosen}:
        raise Problem(f"there is no mutant “{unknown.pop()}” in {LIST.name}.")
    runnable = trees.prepare()[0]
    pages = [r for r in runnable if (r.tree / DYNAMIC).is_file()]
    if not pages and any(mutant.dynamic for mutant in chosen):
        raise Problem(f"the dynamic backend needs a newer ComfyUI in {trees.folder()}.")
    survived = 0
    for tried in _try_all(chosen, {False: runnable[0], True: pages[0] if pages else runnable[0]}):
        survived += tried.caught_by is None
        print(
            f"| {tried.mutant.name} | {tried.caught_by or '**survived**'} | {tried.seconds:.0f} s |",
            flush=True,
        )
    print(f"\n{len(chosen) - survived} of {len(chosen)} caught")
    return int(survived > 0)


def _try_all(chosen: Sequence[Mutant], on: dict[bool, trees.Runnable]) -> Iterator[Tried]:
    at_once = max(1, int(os.environ.get("LAYERWISE_JOBS") or os.cpu_count() or 1))
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch, ThreadPoolExecutor(at_once) as pool:
        copies: Queue[Path] = Queue()
        for number in range(at_once):
            copies.put(_copy(Path(scratch) / str(number)))
        _require_green(chosen, on, copies, pool)
        yield from pool.map(lambda mutant: _try(mutant, on[mutant.dynamic], copies), chosen)


def _require_green(
    chosen: Sequence[Mutant], on: dict[bool, trees.Runnable], copies: Queue[Path], pool: ThreadPoolExecutor
) -> None:
    """Without a mutant everything passes, or a failure would say nothing."""
    sets = list(dict.fromkeys((mutant.tests, mutant.dynamic) for mutant in chosen))

    def check(tests: tuple[str, ...], dynamic: bool) -> str | None:
        copy = copies.get()
        try:
            return _first_failure(copy, tests, on[dynamic])
        finally:
            copies.put(copy)

    for (tests, _), failure in zip(sets, pool.map(lambda s: check(*s), sets), strict=True):
        if failure is not None:
            raise Problem(f"{' '.join(tests)} fails as it is: {failure}")


def _try(mutant: Mutant, on: trees.Runnable, copies: Queue[Path]) -> Tried:
    copy, begun = copies.get(), time.monotonic()
    try:
        mutant.apply(copy)
        return Tried(mutant, _first_failure(copy, mutant.tests, on), time.monotonic() - begun)
    finally:
        shutil.copy(ROOT / mutant.file, copy / mutant.file)
        copies.put(copy)


def _first_failure(folder: Path, tests: Sequence[str], on: trees.Runnable) -> str | None:
    command = [str(on.python), "-m", "pytest", "-qx", "-p", "no:cacheprovider", "--timeout", "120", *tests]
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | {"COMFYUI_PATH": str(on.tree), "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode == 0:
        return None
    failed = re.search(r"^(?:FAILED|ERROR) \S*?([\w.]+::\S+|\S+)", done.stdout, re.MULTILINE)
    return failed.group(1) if failed else f"exit {done.returncode}: {done.stdout.strip()[-200:]}"


def _copy(folder: Path) -> Path:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for name in filter(None, listed.split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    return folder


if __name__ == "__main__":
    run(lambda: main(sys.argv[1:]))
