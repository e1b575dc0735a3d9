"""Facts about the machine, asked of ComfyUI first and of the system where ComfyUI has no answer."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import comfy
import comfy.model_management as mm
import psutil
import torch
from comfy.cli_args import args, parser

from ..policy import FLAGS, MachineFacts, format_bytes
from .contacts import Group, missing
from .host_memory import host_memory
from .record import all_models
from .where import bytes_on_devices

_RESERVE = int(0.8 * 1024**3) + 400 * 1024**2
"""Device memory that ComfyUI keeps for activations; taken where it does not say how much."""


def machine_facts() -> MachineFacts:
    """Take the facts of this machine now."""
    device = mm.get_torch_device()
    accelerator = not mm.is_device_cpu(device)
    memory = host_memory()
    total = int(mm.get_total_memory(device)) if accelerator else 0
    free = int(mm.get_free_memory(device)) if accelerator else 0
    reserve = _reserve() + _headroom() if accelerator else 0
    return MachineFacts(
        device=str(device),
        accelerator=accelerator,
        vram_total=total,
        vram_free=free,
        ram_total=memory.total,
        ram_available=memory.available,
        inference_reserve=reserve,
        vram_others=max(0, total - free - _loaded_by_comfyui(device)),
        pin_limit=_pin_limit(),
        accelerators=_accelerators() if accelerator else 0,
        shared_memory=getattr(getattr(mm, "vram_state", None), "name", "") == "SHARED",
        dynamic_vram=dynamic_vram(),
        flags=tuple(typed for flag in FLAGS if (typed := given(flag)) is not None),
    )


def given(flag: str) -> str | None:
    """Return a flag as it was typed, or None when it was not given, or this ComfyUI does not know it."""
    name = flag.lstrip("-").replace("-", "_")
    value = getattr(args, name, None)
    if value is None or value is False or value == parser.get_default(name):
        return None
    alone = next((action.const for action in parser._actions if action.dest == name), None)
    return flag if value is True or value == alone else f"{flag} {value:g}"


def machine_line(facts: MachineFacts) -> str:
    """Return the machine in one line for people."""
    parts = [f"Placement report · computes on {facts.device}"]
    if facts.accelerator:
        parts.append(f"VRAM {format_bytes(facts.vram_free)} free of {format_bytes(facts.vram_total)}")
    parts.append(f"memory {format_bytes(facts.ram_available)} free of {format_bytes(facts.ram_total)}")
    if facts.accelerator:
        manager = "dynamic VRAM" if facts.dynamic_vram else "legacy memory manager"
        parts.append(f"under ComfyUI's {manager}")
    if facts.flags:
        parts.append(f"started with {' '.join(facts.flags)}")
    return " · ".join(parts)


def name_of(device: torch.device) -> str:
    """Return what the maker of an accelerator calls it, or "" where torch does not say."""
    name = getattr(torch.get_device_module(device), "get_device_name", None)
    return str(name(device)) if name is not None else ""


def peaks() -> dict[str, int]:
    """Return the peak memory of this process, in bytes: what was measured → how much."""
    return {what: count for what, count in {"process memory": _peak_resident()}.items() if count}


def _peak_resident() -> int:
    if sys.platform == "linux":  # VmHWM can be reset, ru_maxrss cannot
        try:
            status = Path("/proc/self/status").read_text()
        except OSError:  # a container may hide it
            return 0
        match = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
        return int(match[1]) * 1024 if match else 0
    return int(getattr(psutil.Process().memory_info(), "peak_wset", 0))


def _loaded_by_comfyui(device: torch.device) -> int:
    """Return the bytes of weights that ComfyUI has on a device; what else is taken belongs to others."""
    entries = (entry.model for entry in mm.current_loaded_models if entry.device == device)
    patchers = [patcher for patcher in entries if patcher is not None]
    listed = {id(patcher.model) for patcher in patchers}
    # ComfyUI takes a model off its list while it loads it again, and what is there of it stays.
    unlisted = (bytes_on_devices(model)[str(device)] for model in all_models() if id(model) not in listed)
    return sum(int(patcher.loaded_size()) for patcher in patchers) + sum(unlisted)


def _reserve() -> int:
    reserve = getattr(mm, "minimum_inference_memory", None)
    return int(reserve()) if reserve is not None else _RESERVE


def _pin_limit() -> int:
    """Return how much more memory ComfyUI would pin; it pins none where the limit is not positive."""
    if missing(Group.PINS):
        return 0
    limit = int(mm.MAX_PINNED_MEMORY)
    return max(0, limit - int(mm.TOTAL_PINNED_MEMORY))


def _accelerators() -> int:
    api = getattr(torch, "accelerator", None)  # torch 2.6; a device outside of it counts as one
    return max(1, int(api.device_count())) if api is not None else 1


def dynamic_vram() -> bool:
    """Tell whether ComfyUI pages weights in by itself; older versions have no such module."""
    return bool(getattr(getattr(comfy, "memory_management", None), "aimdo_enabled", False))


def _headroom() -> int:
    """Return the device memory that dynamic VRAM keeps free beside its reserve; nothing else knows the flag."""
    return int(float(getattr(args, "vram_headroom", 0)) * 1024**3) if dynamic_vram() else 0
