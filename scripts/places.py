"""Where things are: the repository, the virtual environment, the cache. Standard library only."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACK_NAME = "layerwise-offload"
DEMO_OUTPUT = ROOT / "demo_output"


def venv() -> Path:
    """The virtual environment: `LAYERWISE_VENV`, or `.venv` in the repository."""
    return Path(os.environ.get("LAYERWISE_VENV") or ROOT / ".venv").absolute()


def venv_python(environment: Path) -> Path:
    """The interpreter of a virtual environment, which lies elsewhere on Windows."""
    return environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def cache() -> Path:
    """Downloads and generated models: `LAYERWISE_CACHE`, or `.cache` in the repository."""
    return Path(os.environ.get("LAYERWISE_CACHE") or ROOT / ".cache").absolute()


def demo_models() -> Path:
    return cache() / "demo_models"


def shown(path: Path) -> str:
    """A path as a person wants to read it: relative to the repository where it lies inside."""
    try:
        return str(path.relative_to(ROOT))
    except ValueError:
        return str(path)
