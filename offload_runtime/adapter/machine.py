"""*Check this machine* in ComfyUI: on its device, with its pins, in its folders; and what the last check found."""

from __future__ import annotations

import contextlib
import importlib
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import comfy.model_management as mm
import comfy.utils
import folder_paths

from .. import log
from ..check import Extent, Ground, check_machine, load, save
from ..engine.check import Pins
from ..errors import PolicyError
from ..policy import HostTier as Host
from ..policy.machine_check import FILE_NAME, MachineCheck
from . import hardware, pinning

_ROOM = 3 * 10**9
"""Device memory that all of the check takes; ComfyUI makes room for it as for a model, if there is less."""
_PARTS = 1000
_NOT_DYNAMIC = (
    "What a prompt costs under dynamic VRAM was not checked: that takes the whole card, and python -m bench.gpu_check "
    "in the pack's repository does it."
)


def check_file() -> Path:
    """Return where the result of a check is kept."""
    return Path(folder_paths.get_user_directory()) / FILE_NAME


def check_this_machine(
    progress: Callable[[float, str], None] | None = None, extent: Extent | None = None
) -> MachineCheck:
    """Check the device that ComfyUI computes on; an interrupt of the prompt ends it.

    Args:
        progress: told what ComfyUI's progress bar is told, too.
        extent: how much is moved and computed.
    """
    device = mm.get_torch_device()
    if not mm.is_device_cpu(device):
        mm.free_memory(min(_ROOM, mm.get_total_memory(device) // 2), device)
    bar = comfy.utils.ProgressBar(_PARTS)

    def step(done: float, name: str) -> None:
        mm.throw_exception_if_processing_interrupted()
        bar.update_absolute(int(_PARTS * done), _PARTS)
        if progress is not None:
            progress(done, name)

    pins = Pins(pinning.Pins().take, pinning.unpin)
    with _temporary_folder() as folder:
        check = check_machine(Ground(device, folder, pins, _comfyui_version()), step, extent)
    if hardware.dynamic_vram():
        return replace(check, notes=(*check.notes, _NOT_DYNAMIC))
    return check


def keep(check: MachineCheck) -> MachineCheck:
    """Keep a check for predictions; where its file cannot be written, what is returned says so."""
    try:
        save(check_file(), check)
    except OSError as error:
        note = (
            f"The result was not kept for predictions, because its file cannot be written: {error.strerror}."
        )
        return replace(check, notes=(*check.notes, note))
    return check


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    """Lend ComfyUI's temporary folder, which only a running server has, or the system's."""
    folder = Path(folder_paths.get_temp_directory())
    made = not folder.is_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        folder, made = Path(tempfile.gettempdir()), False
    try:
        yield folder
    finally:
        if made:
            with contextlib.suppress(OSError):  # somebody else uses it by now
                folder.rmdir()


_last: tuple[tuple[int, int, int], MachineCheck | None] | None = None
"""What identifies the file that was read last, and what it said."""


def machine_check() -> MachineCheck | None:
    """Return what the last check of this machine found, or None where there was none on ComfyUI's device.

    A file that cannot be used counts as none, with one warning.
    """
    global _last
    try:
        stat = check_file().stat()
    except OSError:
        return None
    key = stat.st_mtime_ns, stat.st_size, stat.st_ino
    if _last is None or _last[0] != key:
        _last = key, _read()
    found = _last[1]
    return found if found is not None and _is_of(found) else None


def link_from(tier: str) -> float:
    """Return the bytes that are copied to the device in a second from a host tier, or 0 where nobody has checked."""
    check = machine_check()
    speeds = {Host.PINNED: check.link_pinned, Host.STAGED: check.link_pageable} if check is not None else {}
    return next((speed for of, speed in speeds.items() if of == tier and speed), 0.0)


def _read() -> MachineCheck | None:
    try:
        return load(check_file())
    except PolicyError as error:
        log.warning("%s", error)
        return None


def _is_of(check: MachineCheck) -> bool:
    """Tell whether a check was of the device that ComfyUI computes on now."""
    device = mm.get_torch_device()
    if mm.is_device_cpu(device):
        return check.kind == "cpu"
    return check.kind == device.type and check.device == (hardware.name_of(device) or device.type)


def _comfyui_version() -> str:
    try:
        return str(importlib.import_module("comfyui_version").__version__)
    except (ImportError, AttributeError):
        return ""
