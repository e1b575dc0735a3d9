"""The ComfyUI trees that the tests run on, and the environment of each. Standard library only.

Beside the tree that `comfyui_tree` finds, those in the trees folder: `LAYERWISE_TREES`, or
`~/.cache/layerwise-offload/trees`. Each of them has a virtual environment of its own inside the common one, which sees
everything that is installed there, so that only what the tree wants otherwise is installed once more.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import NamedTuple

from . import comfyui_tree, setup_env
from .places import shown, venv, venv_python
from .problem import Problem


class Runnable(NamedTuple):
    """A tree that can be run, and with which interpreter."""

    name: str
    tree: Path
    python: Path


def folder() -> Path:
    """Where further trees are looked for."""
    return (
        Path(os.environ.get("LAYERWISE_TREES") or "~/.cache/layerwise-offload/trees").expanduser().absolute()
    )


def found() -> list[Path]:
    """Everything that lies in the trees folder, by name, except the tree that is in use anyway."""
    if not folder().is_dir():
        return []
    own = comfyui_tree.require().resolve()
    return sorted(path for path in folder().iterdir() if path.is_dir() and path.resolve() != own)


def prepare() -> tuple[list[Runnable], list[str]]:
    """Make an environment for each tree.

    Returns:
        The trees that can be run, the one in use first; and a sentence for each that cannot.
    """
    own = comfyui_tree.require()
    runnable = [Runnable(f"ComfyUI {comfyui_tree.version(own)}", own, venv_python(venv()))]
    left_out = []
    for tree in found():
        try:
            if missing := comfyui_tree.lacks(tree):
                raise Problem(f"it is not a ComfyUI tree (no {missing} in it)")
            runnable.append(Runnable(f"ComfyUI {comfyui_tree.version(tree)}", tree, _environment(tree)))
        except Problem as problem:
            left_out.append(f"{tree.name}: {problem}")
    return runnable, left_out


def _environment(tree: Path) -> Path:
    environment = venv() / "trees" / tree.name
    python = setup_env.ensure_venv(environment)
    base, own = (_site_packages(p) for p in (venv_python(venv()), python))
    # Behind its own folder on the path: what the tree wants in another version lies before it.
    (own / "layerwise_base.pth").write_text(f"{base}\n", encoding="utf-8")
    step = setup_env.Step(
        f"the requirements of ComfyUI {comfyui_tree.version(tree)}",
        (tree / "requirements.txt",),
        "150 MB, a minute or two",
    )
    setup_env.install([step], python, environment / ".layerwise-stamp.json")
    return python


def _site_packages(python: Path) -> Path:
    asked = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Problem(f"{shown(python)} does not run: {done.stderr.strip()[-200:]}")
    return Path(done.stdout.strip())
