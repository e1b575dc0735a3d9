"""Facts about the machine, asked of ComfyUI first and of the system where ComfyUI has no answer."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import comfy.model_management as mm
import psutil
import torch
from comfy.cli_args import args

from ..policy import MachineFacts, format_bytes

_FLAGS = (
    "cpu",
    "cpu_vae",
    "gpu_only",
    "highvram",
    "lowvram",
    "novram",
    "disable_smart_memory",
    "disable_async_offload",
    "disable_pinned_memory",
    "disable_dynamic_vram",
    "reserve_vram",
)
"""Command-line flags that bound placements; the ones a version does not know are simply not set."""


def machine_facts() -> MachineFacts:
    """Take the facts of this machine now."""
    device = mm.get_torch_device()
    accelerator = not mm.is_device_cpu(device)
    memory = psutil.virtual_memory()
    return MachineFacts(
        device=str(device),
        accelerator=accelerator,
        vram_total=int(mm.get_total_memory(device)) if accelerator else 0,
        vram_free=int(mm.get_free_memory(device)) if accelerator else 0,
        ram_total=memory.total,
        ram_available=memory.available,
        inference_reserve=int(mm.minimum_inference_memory()) if accelerator else 0,
        flags=tuple(_spell(flag) for flag in _FLAGS if getattr(args, flag, None) not in (None, False)),
    )


def machine_line(facts: MachineFacts) -> str:
    """Return the machine in one line for people."""
    parts = [f"Placement report · computes on {facts.device}"]
    if facts.accelerator:
        parts.append(f"VRAM {format_bytes(facts.vram_free)} free of {format_bytes(facts.vram_total)}")
    parts.append(f"memory {format_bytes(facts.ram_available)} free of {format_bytes(facts.ram_total)}")
    if facts.flags:
        parts.append(f"started with {' '.join(facts.flags)}")
    return " · ".join(parts)


def peaks(facts: MachineFacts) -> dict[str, int]:
    """Return the peak memory of this process, in bytes: what was measured → how much."""
    measured = {"process memory": _peak_resident()}
    if facts.accelerator and torch.cuda.is_available():
        measured["VRAM allocated by torch"] = torch.cuda.max_memory_allocated()
    return {what: count for what, count in measured.items() if count}


def _peak_resident() -> int:
    if sys.platform == "linux":  # VmHWM can be reset, ru_maxrss cannot
        match = re.search(r"^VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
        return int(match[1]) * 1024 if match else 0
    return int(getattr(psutil.Process().memory_info(), "peak_wset", 0))


def _spell(flag: str) -> str:
    value = getattr(args, flag)
    option = f"--{flag.replace('_', '-')}"
    return option if value is True else f"{option} {value}"
