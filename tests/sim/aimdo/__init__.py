"""A stand-in for the native ``comfy_aimdo`` modules, over simulated memory.

ComfyUI 0.33's dynamic VRAM calls these modules; their native half needs a CUDA driver. The Python face
follows version 0.4.13, the behaviour its published description. See ``vbar`` for the eviction policy, which
is the part that had to be filled in.
"""

from __future__ import annotations

import mmap
import sys
from types import ModuleType
from typing import Any, NoReturn

import torch

from . import buffers, vbar

reset = vbar.reset


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise NotImplementedError(
        "The simulated comfy_aimdo has no file tier: give models their weights in memory."
    )


class _ModelMMAP:
    """A model file in memory. Without a handle of it ComfyUI copies from there, and reads no slices of the file."""

    def __init__(self, path: str) -> None:
        with open(path, "rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        self._bytes = torch.frombuffer(self._map, dtype=torch.uint8)

    def get_file_handle(self) -> None:
        return None

    def get(self) -> int:
        return self._bytes.data_ptr()

    def bounce(self) -> None:
        """Give the pages back to the system, which counts them as the file's anyway."""


_FACES: dict[str, dict[str, Any]] = {
    "model_vbar": {
        "ModelVBAR": vbar.ModelVBAR,
        "vbar_fault": vbar.vbar_fault,
        "vbar_unpin": vbar.vbar_unpin,
        "vbar_signature_compare": vbar.vbar_signature_compare,
        "vbars_analyze": vbar.vbars_analyze,
        "vbars_reset_watermark_limits": vbar.vbars_reset_watermark_limits,
    },
    "vram_buffer": {"VRAMBuffer": buffers.VRAMBuffer},
    "host_buffer": {
        "HostBuffer": buffers.HostBuffer,
        "read_file_to_device": _refuse,
        "cleanup_file_reader": lambda: None,
    },
    "torch": {"aimdo_to_tensor": buffers.aimdo_to_tensor, "hostbuf_to_tensor": buffers.hostbuf_to_tensor},
    "model_mmap": {"ModelMMAP": _ModelMMAP},
    "control": {
        "lib": None,
        "devctxs": [],
        "init": lambda *_, **__: True,
        "init_devices": lambda devices: True,
        "init_device": lambda device, extra_vram_headroom=0: True,
        "deinit": lambda: None,
        "analyze": lambda: None,
        "get_total_vram_usage": vbar.vbars_analyze,
    },
}


def install() -> None:
    """Put the modules where ComfyUI will import them; it keeps what it imported, so this is not undone."""
    if getattr(sys.modules.get("comfy_aimdo"), "simulated", False):
        return
    package = ModuleType("comfy_aimdo")
    package.__path__ = []
    package.simulated = True  # type: ignore[attr-defined]
    sys.modules["comfy_aimdo"] = package
    for name, members in _FACES.items():
        module = ModuleType(f"comfy_aimdo.{name}")
        vars(module).update(members)
        setattr(package, name, module)
        sys.modules[module.__name__] = module
