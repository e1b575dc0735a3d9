"""Write the coverage table out of test runs, one for each ComfyUI tree that is named.

    python -m scripts.refresh_coverage TREE [TREE ...]     # without one: the tree of COMFYUI_PATH

A changed row in a diff is a changed promise to people: read it before committing it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from . import comfyui_tree
from .places import ROOT, shown
from .problem import Problem, run

TESTS = ROOT / "tests" / "comfy"
# The floor's conftest makes ComfyUI importable; it has to come first.
EXAMINE = "import conftest, pathlib, sys, coverage_table; coverage_table.main(pathlib.Path(sys.argv[1]))"
TABLE = ROOT / "docs" / "coverage.md"


def main() -> None:
    trees = [Path(tree).absolute() for tree in sys.argv[1:]] or [comfyui_tree.require()]
    with tempfile.TemporaryDirectory() as folder:
        for tree in trees:
            _examine(tree, Path(folder, "rows.json"))
    print(f"written: {shown(TABLE)}")


def _examine(tree: Path, collected: Path) -> None:
    """Examine every family in a process of its own: one process holds one ComfyUI."""
    done = subprocess.run(
        [sys.executable, "-c", EXAMINE, str(collected)],
        cwd=ROOT,
        env=os.environ | {"COMFYUI_PATH": str(tree), "PYTHONPATH": os.pathsep.join((str(TESTS), str(ROOT)))},
        check=False,
    )
    if done.returncode:
        raise Problem(f"the families of {tree} are not all right; see above")


if __name__ == "__main__":
    run(main)
