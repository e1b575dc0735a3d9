"""Find the ComfyUI frontend that the browser tests use: one wheel from the package index, unpacked into the cache.

ComfyUI serves whichever frontend its own requirements name, and that of 0.3.75 is older than what people run; so
the tests bring their own and hand it over with `--front-end-root`. `LAYERWISE_FRONTEND` names another version.
"""

from __future__ import annotations

import os
import tempfile
import zipfile
from pathlib import Path

from .pip_runner import pip
from .places import cache
from .problem import Problem

PACKAGE = "comfyui-frontend-package"
VERSION = "1.49.6"
WHEEL_PREFIX = "comfyui_frontend_package/static/"


def version() -> str:
    return os.environ.get("LAYERWISE_FRONTEND") or VERSION


def is_there() -> bool:
    return _unpacked().is_dir()


def require() -> Path:
    """The folder with the frontend's index.html, which set-up must have made available."""
    if not is_there():
        raise Problem(
            f"the frontend {version()} is not there yet; run `python3 -m scripts.setup_env --browser` first."
        )
    return _unpacked()


def download(python: Path) -> None:
    """Fetch the wheel with the interpreter's pip and unpack it; the folder appears whole or not at all."""
    target = _unpacked()
    target.parent.mkdir(parents=True, exist_ok=True)
    wanted = f"{PACKAGE}=={version()}"
    with tempfile.TemporaryDirectory(prefix=".frontend-", dir=target.parent) as scratch:
        pip(
            python,
            ["download", "--no-deps", "--only-binary", ":all:", "--dest", scratch, wanted],
            what=f"downloading ComfyUI's frontend ({wanted})",
        )
        wheel = next(Path(scratch).glob("*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(scratch)
        unpacked = Path(scratch, WHEEL_PREFIX)
        if not (unpacked / "index.html").is_file():
            raise Problem(f"{wheel.name} holds no frontend under {WHEEL_PREFIX}; set LAYERWISE_FRONTEND.")
        unpacked.rename(target)


def _unpacked() -> Path:
    return cache() / f"frontend-{version()}"
