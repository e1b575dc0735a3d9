"""ComfyUI whose GPU is the simulated one.

ComfyUI reaches its GPU through ``torch.cuda`` and a few functions of ``comfy.model_management`` that name
devices. Those are replaced while a :class:`ComfyUI` is open, in this process only, and put back when it is
closed; so is the state that ComfyUI keeps in module globals (loaded models, streams, pins).
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from . import aimdo
from .accelerator import Accelerator
from .patches import Patches
from .runtime import active

ENVIRONMENT = "COMFYUI_PATH"

_CUDA_FACE = (
    "Event", "Stream", "StreamContext", "current_device", "current_stream", "default_stream", "device_count",
    "empty_cache", "get_device_capability", "get_device_name", "get_device_properties", "ipc_collect",
    "is_bf16_supported", "max_memory_allocated", "mem_get_info", "memory_allocated", "memory_reserved",
    "memory_stats", "memory_summary", "reset_peak_memory_stats", "set_device", "stream", "synchronize",
)  # fmt: skip

#: Reserve and floor that ComfyUI keeps free on Linux for activations: 0.8 GiB, and 400 MiB for other
#: programs.
ACTIVATION_RESERVE = int(0.8 * (1 << 30)) + 400 * (1 << 20)


def tree() -> Path:
    """The ComfyUI to test against.

    Raises:
        RuntimeError: the environment does not name one.
    """
    path = os.environ.get(ENVIRONMENT)
    if not path or not (Path(path) / "comfy" / "sd.py").is_file():
        raise RuntimeError(
            f"These tests run real ComfyUI: set {ENVIRONMENT} to the folder of a ComfyUI tree (got {path!r})."
        )
    return Path(path)


class _Cudart:
    """The two CUDA runtime calls with which ComfyUI pins memory in place."""

    @staticmethod
    def cudaHostRegister(pointer: int, size: int, flags: int) -> int:
        return 0 if active().host.register(pointer, size) else 1

    @staticmethod
    def cudaHostUnregister(pointer: int) -> int:
        return 0 if active().host.unregister(pointer) else 1


class ComfyUI:
    """An imported ComfyUI on the simulated card. Attributes are its modules: ``comfy.sd``, ``comfy.mm``, ….

    Args:
        sim: the card, switched on.
        vram: ComfyUI's memory mode: ``normal``, ``low``, ``novram`` or ``high``.
        dynamic: use dynamic VRAM (0.33 and later), over the simulated ``comfy_aimdo``.
        streams: ComfyUI's number of offload streams.
        pinned: whether ComfyUI may pin memory.
    """

    def __init__(
        self,
        sim: Accelerator,
        *,
        vram: str = "normal",
        dynamic: bool = False,
        streams: int = 2,
        pinned: bool = True,
    ) -> None:
        self.sim = sim
        self.path = tree()
        self._patches = Patches()
        self._simulate_cuda()
        self._import()
        self._configure(vram, streams, pinned)
        if dynamic:
            self.enable_dynamic()

    @property
    def has_dynamic(self) -> bool:
        """Whether this version has dynamic VRAM."""
        return hasattr(self.model_patcher, "ModelPatcherDynamic")

    def enable_dynamic(self) -> None:
        """Do what ComfyUI's ``main.py`` does when it finds that dynamic VRAM works."""
        self._patches.set(self.model_patcher, "CoreModelPatcher", self.model_patcher.ModelPatcherDynamic)
        self._patches.set(self.memory_management, "aimdo_enabled", True)

    @contextmanager
    def dynamic_off(self) -> Iterator[None]:
        """Build modules the ordinary way, with parameters, inside."""
        before = getattr(self.memory_management, "aimdo_enabled", False)
        self.memory_management.aimdo_enabled = False
        try:
            yield
        finally:
            self.memory_management.aimdo_enabled = before

    def end_node(self) -> None:
        """What ComfyUI's executor does after every node of a dynamic workflow."""
        self.mm.reset_cast_buffers()
        importlib.import_module("comfy.model_prefetch").cleanup_prefetch_queues()
        aimdo.vbar.vbars_reset_watermark_limits()

    def close(self) -> None:
        """Unload everything and put back what was patched."""
        try:
            self.sim.synchronize()
            # A model that died with its test must not do so in the middle of ComfyUI's list of loaded ones.
            gc.collect()
            self.mm.cleanup_models()
            self.mm.unload_all_models()
            if hasattr(self.mm, "reset_cast_buffers"):
                self.mm.reset_cast_buffers()
            aimdo.reset()
        finally:
            self._patches.undo()

    def cap_for(self, weights: int) -> None:
        """Size the card so that ComfyUI, while nothing else is loaded, budgets ``weights`` bytes."""
        self.sim.cap = self.sim.memory.live + ACTIVATION_RESERVE + weights
        self.mm.total_vram = self.sim.cap / (1 << 20)

    # Opening --------------------------------------------------------------------------------------

    def _simulate_cuda(self) -> None:
        device_module = torch.get_device_module("sim")
        for name in _CUDA_FACE:
            self._patches.set(torch.cuda, name, getattr(device_module, name))
        self._patches.set(torch.cuda, "cudart", lambda: _Cudart)
        self._patches.set(torch.cuda, "get_allocator_backend", lambda: "simulated")
        if torch.version.cuda is None:
            # A CPU build of torch: ComfyUI recognises NVIDIA by this alone.
            self._patches.set(torch.version, "cuda", "13.0")

    def _import(self) -> None:
        os.environ.setdefault("LAYERWISE_OFFLOAD_LEARN", "off")  # a benchmark starts from nothing
        aimdo.install()
        sys.path.insert(0, str(self.path))
        self._patches.callback(lambda: sys.path.remove(str(self.path)))
        with warnings.catch_warnings():
            # Other people's code, imported once: its deprecations are not ours to fix.
            warnings.simplefilter("ignore")
            modules = {
                name: self._module(f"comfy.{name}") for name in ("sd", "sample", "clip_vision", "utils")
            }
            modules |= {name: self._module(f"comfy.{name}") for name in ("model_patcher", "ops", "cli_args")}
        self.sd, self.sample, self.clip_vision = modules["sd"], modules["sample"], modules["clip_vision"]
        self.model_patcher, self.ops, self.utils = modules["model_patcher"], modules["ops"], modules["utils"]
        self.args = modules["cli_args"].args
        self.mm = self._module("comfy.model_management")
        self.memory_management = sys.modules.get("comfy.memory_management", SimpleNamespace())
        loaded = Path(self.mm.__file__).parents[1]
        if loaded.resolve() != self.path.resolve():
            raise RuntimeError(
                f"ComfyUI was imported from {loaded}, not from {ENVIRONMENT}: one tree per process."
            )

    @staticmethod
    def _module(name: str) -> ModuleType:
        return importlib.import_module(name)

    def _configure(self, vram: str, streams: int, pinned: bool) -> None:
        mm, device = self.mm, self.sim.device
        changes: dict[str, Any] = {
            "get_torch_device": lambda: device,
            "get_all_torch_devices": lambda exclude_current=False: [] if exclude_current else [device],
            "is_device_cuda": lambda other: getattr(other, "type", None) in ("cuda", device.type),
            "cpu_state": mm.CPUState.GPU,
            "total_vram": self.sim.cap / (1 << 20),
            "NUM_STREAMS": streams,
            "MAX_PINNED_MEMORY": 1 << 40 if pinned else -1,
            "vram_state": mm.VRAMState[{"novram": "NO_VRAM"}.get(vram, f"{vram.upper()}_VRAM")],
        }
        fresh: dict[str, Any] = {
            "STREAMS": {}, "stream_counters": {}, "STREAM_CAST_BUFFERS": {}, "STREAM_AIMDO_CAST_BUFFERS": {},
            "LARGEST_CASTED_WEIGHT": (None, 0), "LARGEST_AIMDO_CASTED_WEIGHT": (None, 0), "PINNED_MEMORY": {},
            "TOTAL_PINNED_MEMORY": 0, "LORA_COMPUTE_DTYPES": {}, "current_loaded_models": [],
        }  # fmt: skip
        for name, value in (changes | fresh).items():
            if hasattr(mm, name):
                self._patches.set(mm, name, value)
        self._patches.set(self.args, "novram", vram == "novram")
        self._patches.set(torch.cuda, "is_available", lambda: True)
