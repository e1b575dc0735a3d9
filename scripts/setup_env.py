"""Make the environment of the demo and the tests: `python3 -m scripts.setup_env [--dev | --browser]`.

Standard library only: it runs before anything is installed. Each step leaves a hash of its inputs in a stamp
file inside the environment, so a second run has nothing to do and says nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from . import chromium, comfyui_tree, frontend
from .pip_runner import pip
from .places import ROOT, shown, venv, venv_python
from .problem import Problem, run

OLDEST_PYTHON = (3, 10)
PACK = (ROOT / "requirements.txt", ROOT / "scripts" / "requirements-demo.txt")
TORCH = ROOT / "scripts" / "requirements-torch.txt"
# torch for Linux brings the CUDA libraries along, whether or not there is a GPU.
GIGABYTES_NEEDED = 9 if sys.platform == "linux" else 3


@dataclass(frozen=True)
class Step:
    """One `pip install`; done when the stamp holds the digest of its requirement files."""

    name: str
    files: tuple[Path, ...]
    about: str

    def digest(self) -> str:
        text = b"\0".join(file.read_bytes() for file in (*self.files, TORCH))
        return hashlib.sha256(text + platform.python_version().encode()).hexdigest()

    def install(self, python: Path) -> None:
        files = [argument for file in self.files for argument in ("-r", str(file))]
        # The constraint keeps a ComfyUI tree's bare "torch" from moving the verified versions.
        pip(python, ["install", "-c", str(TORCH), *files], what=f"installing {self.name}")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dev", action="store_true", help="also install what the tests need")
    parser.add_argument("--browser", action="store_true", help="also what the tests in a browser need")
    options = parser.parse_args(arguments)
    if sys.version_info < OLDEST_PYTHON:
        raise Problem(
            f"Python {platform.python_version()} is too old; run with Python 3.10 or newer "
            "(for example `make demo PYTHON=python3.11`)."
        )
    tree = comfyui_tree.locate()  # a wrong COMFYUI_PATH is better said before a long installation
    python = ensure_venv(venv())
    if tree is None:
        with announced(f"ComfyUI {comfyui_tree.VERSION}: downloading and unpacking (8 MB, a few seconds)"):
            tree = comfyui_tree.download(python)
    install(steps(tree, options.dev or options.browser), python, venv() / ".layerwise-stamp.json")
    if options.browser:
        ensure_browser(python)


def steps(tree: Path, dev: bool) -> list[Step]:
    """What has to be installed, in order."""
    found = [
        Step("torch", (TORCH,), "3 GB, 2 to 6 minutes"),
        Step(
            f"the requirements of ComfyUI {comfyui_tree.version(tree)}",
            (tree / "requirements.txt",),
            "500 MB, 1 to 3 minutes",
        ),
        Step("the pack's requirements", PACK, "seconds"),
    ]
    if dev:
        found.append(Step("the development tools", (ROOT / "requirements-dev.txt",), "under a minute"))
    return found


def install(wanted: list[Step], python: Path, stamp: Path) -> None:
    """Run the steps whose digest is not in the stamp, and record each as soon as it is done."""
    done = _read_stamp(stamp)
    for place, step in enumerate(wanted):
        # Keyed by place, not name: another tree's requirements replace the former ones.
        if done.get(str(place)) == step.digest():
            continue
        # While pip works the environment matches neither the old nor the new list.
        done.pop(str(place), None)
        _write_stamp(stamp, done)
        with announced(f"installing {step.name} ({step.about})"):
            step.install(python)
        done[str(place)] = step.digest()
        _write_stamp(stamp, done)


def ensure_browser(python: Path) -> None:
    """Make the frontend and a Chromium available; raise a Problem that says how where we cannot."""
    if not frontend.is_there():
        with announced(f"ComfyUI's frontend {frontend.version()}: downloading and unpacking (a few seconds)"):
            frontend.download(python)
    if chromium.locate() is None:
        if not chromium.can_install():
            raise Problem(chromium.HOW_TO_INSTALL)
        with announced("installing Debian's Chromium (300 MB, a minute)"):
            chromium.install()


def ensure_venv(environment: Path) -> Path:
    """Create the virtual environment unless it is there and answers; return its interpreter."""
    python = venv_python(environment)
    if (environment / "pyvenv.cfg").is_file() and _answers(python):
        return python
    if environment.exists() and not (environment / "pyvenv.cfg").is_file() and any(environment.iterdir()):
        raise Problem(
            f"{shown(environment)} is no virtual environment; empty it, or point LAYERWISE_VENV elsewhere."
        )
    if importlib.util.find_spec("ensurepip") is None or importlib.util.find_spec("venv") is None:
        raise Problem(
            "this Python cannot create virtual environments (the module ensurepip is missing); "
            "install it (on Debian or Ubuntu: `apt install python3-venv`) and run the same command again."
        )
    _require_disk(environment)
    with announced(f"creating the virtual environment {shown(environment)} (a few seconds)"):
        made = subprocess.run(
            [sys.executable, "-m", "venv", "--clear", str(environment)],
            capture_output=True,
            text=True,
            check=False,
        )
    if made.returncode != 0:
        reason = (made.stderr or made.stdout).strip().splitlines() or ["no reason given"]
        raise Problem(f"creating the virtual environment {shown(environment)} failed: {reason[-1]}")
    return python


class announced:
    """Print what begins and, when it took a while, how long it took."""

    def __init__(self, what: str) -> None:
        self.what = what

    def __enter__(self) -> None:
        self.started = time.monotonic()
        print(f"… {self.what}", flush=True)

    def __exit__(self, failed: object, *_: object) -> None:
        if not failed:
            print(f"  done in {time.monotonic() - self.started:.0f} s", flush=True)


def _answers(python: Path) -> bool:
    """Whether the interpreter runs and is the version that we run under."""
    try:
        asked = subprocess.run(
            [str(python), "-S", "-c", "import platform; print(platform.python_version())"],
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return False
    return asked.stdout.strip() == platform.python_version()


def _require_disk(environment: Path) -> None:
    existing = next(folder for folder in (environment, *environment.parents) if folder.exists())
    free = shutil.disk_usage(existing).free / 1e9
    if free < GIGABYTES_NEEDED:
        raise Problem(
            f"the environment needs about {GIGABYTES_NEEDED} GB and {existing} has {free:.1f} GB free; "
            "free some space, or set LAYERWISE_VENV to a folder on another disk."
        )


def _read_stamp(stamp: Path) -> dict[str, str]:
    try:
        return json.loads(stamp.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _write_stamp(stamp: Path, done: dict[str, str]) -> None:
    partial = stamp.with_suffix(".partial")
    partial.write_text(json.dumps(done, indent=1), encoding="utf-8")
    os.replace(partial, stamp)


if __name__ == "__main__":
    run(main)
