"""`python -m offload_runtime check`: the same as the node, from a terminal, with ComfyUI or without."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from .errors import IncompatibleError, PolicyError
from .policy.machine_check import FILE_NAME, MachineCheck
from .policy.machine_text import machine_text

_EVERY = 2.0
"""Seconds between lines of progress, unless something else begins."""


def add_check(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to a parser."""
    command = commands.add_parser(
        "check",
        allow_abbrev=False,
        help="measure what this machine can do, and whether the pack's claims hold",
    )
    command.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help=f"where the result goes (default: {FILE_NAME} in ComfyUI's user folder, or here without ComfyUI)",
    )
    command.add_argument("--flags", default="", help="ComfyUI's flags, such as --flags='--cpu'")
    command.set_defaults(run=_check)


def _check(options: argparse.Namespace) -> str:
    output = options.output
    if output is not None and not output.parent.is_dir():
        raise PolicyError(f"{output} cannot be written: there is no folder {output.parent}")
    try:
        import torch  # noqa: F401
    except ImportError:
        raise PolicyError("torch is not installed here; run this with the Python that runs ComfyUI") from None
    folder, check = _in_comfyui(options.flags) or (Path(), _with_torch())
    from .check import save

    file, text = output or folder / FILE_NAME, machine_text(check)
    try:
        save(file, check)
    except OSError as error:
        sys.stdout.write(f"{text}\n")
        raise PolicyError(f"{file} cannot be written: {error.strerror}") from None
    return f"{text}\n\nwritten to {file}"


def _in_comfyui(flags: str) -> tuple[Path, MachineCheck] | None:
    """Check on ComfyUI's device if ComfyUI is here, and return its user folder, too.

    Where it is here and does not start, a line says so.
    """
    root = _comfyui_root()
    if root is None:
        return None
    sys.path.insert(0, str(root))  # in front of the pack, whose `nodes` would be taken for ComfyUI's
    try:
        _read_flags(flags)
        from .adapter import machine
    except IncompatibleError as error:
        sys.stderr.write(f"{error}\n")
        return None
    except Exception as error:  # whatever a ComfyUI meets that was not started by its own main
        sys.stderr.write(f"ComfyUI is here but does not start ({type(error).__name__}: {error}).\n")
        return None
    return machine.check_file().parent, machine.check_this_machine(_lines())


def _with_torch() -> MachineCheck:
    from .check import Ground, check_machine, default_device
    from .check.ground import default_pins

    device = default_device()
    return check_machine(Ground(device, Path(tempfile.gettempdir()), default_pins(device)), _lines())


def _comfyui_root() -> Path | None:
    """Return ComfyUI's folder: this one, the one that the pack is installed in, or that of COMFYUI_PATH."""
    pack = Path(os.path.abspath(__file__)).parents[1]  # as it was found: a link counts, not what it leads to
    named = os.environ.get("COMFYUI_PATH", "")
    for root in (Path.cwd(), pack.parent.parent, *([Path(named)] if named else [])):
        if (root / "comfy" / "model_management.py").is_file():
            return root
    return None


def _read_flags(flags: str) -> None:
    """Let ComfyUI read its command line as it does when it starts, from our option."""
    from .check import default_device

    words = shlex.split(flags)
    if default_device().type == "cpu" and "--cpu" not in words:
        words.append("--cpu")  # without it ComfyUI looks for a card until it fails
    before = sys.argv
    sys.argv = [before[0], *words]
    try:
        importlib.import_module("comfy.options").enable_args_parsing()
        importlib.import_module("comfy.cli_args")
    finally:
        sys.argv = before


def _lines() -> Callable[[float, str], None]:
    """Return what writes the progress to the terminal, a line at a time."""
    last, told = "", 0.0

    def progress(done: float, name: str) -> None:
        nonlocal last, told
        if name != last or done == 1 or time.monotonic() - told >= _EVERY:
            last, told = name, time.monotonic()
            sys.stderr.write(f"{done:4.0%} {name}\n")
            sys.stderr.flush()

    return progress
