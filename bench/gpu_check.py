"""Check what the pack claims on a real NVIDIA GPU, in under three minutes. `python -m bench.gpu_check [PART]`

The engine's part needs torch only. The part on dynamic VRAM needs the `comfy-aimdo` package, and for what a prompt
costs a ComfyUI in COMFYUI_PATH, too. Each part runs in a process of its own, because comfy-aimdo replaces the
driver's allocator. Exits with 1 when a claim does not hold, and with 0 when there is nothing to check it on.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from offload_runtime.engine.check import T5_LIKE, Check, Setup, cuda_pins, engine_checks

from .gpu_dynamic import PAGE, ROOM, native_checks, prompt_checks


def why_not() -> str | None:
    """Return why nothing can be checked on this machine, in a sentence, or None."""
    if not torch.cuda.is_available():
        return f"Nothing was checked: torch {torch.__version__} sees no NVIDIA GPU on this machine."
    return None


def table(part: str, checks: Sequence[Check]) -> str:
    """Return the checks as text."""
    lines = [f"{'ok' if c.holds else 'FAILS':6}{c.claim}: {c.found}" for c in checks]
    return "\n".join([f"== {part}", *lines])


def engine() -> list[Check]:
    """Check the engine."""
    return engine_checks(Setup(torch.device("cuda", 0), T5_LIKE, cuda_pins()))


def dynamic() -> list[Check] | str:
    """Check dynamic VRAM; a sentence where that is not possible."""
    if importlib.util.find_spec("comfy_aimdo") is None:
        return "Dynamic VRAM was not checked: the package comfy-aimdo is not installed."
    control = importlib.import_module("comfy_aimdo.control")
    if not (control.init() and control.init_devices([0])):
        return "Dynamic VRAM was not checked: comfy-aimdo does not start on this machine."
    with _room(24 * PAGE):
        checks = native_checks(importlib.import_module("comfy_aimdo.model_vbar"))
    path = Path(os.environ.get("COMFYUI_PATH", ""))
    if not (path / "comfy" / "model_prefetch.py").is_file():
        print("Without a ComfyUI with dynamic VRAM in COMFYUI_PATH, what a prompt costs was not checked.")
        return checks
    sys.path.insert(0, str(path))
    with _room(ROOM):
        return checks + prompt_checks(_comfyui())


@contextmanager
def _room(size: int) -> Iterator[None]:
    """Take the GPU's memory, except for some, while inside."""
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    ballast = torch.empty(max(0, free - size), dtype=torch.uint8, device="cuda")
    yield
    del ballast
    torch.cuda.empty_cache()


def _comfyui() -> Any:
    """Return ComfyUI with dynamic VRAM on, in the form that a `Workflow` takes."""
    names = ("model_management", "model_patcher", "memory_management", "model_prefetch", "ops")
    mm, patcher, memory, prefetch, ops = (importlib.import_module(f"comfy.{name}") for name in names)
    native = importlib.import_module("comfy_aimdo.model_vbar")
    patcher.CoreModelPatcher = patcher.ModelPatcherDynamic  # what ComfyUI's main.py does when it starts
    memory.aimdo_enabled = True

    @contextmanager
    def dynamic_off() -> Iterator[None]:
        memory.aimdo_enabled = False
        yield
        memory.aimdo_enabled = True

    @contextmanager
    def measure() -> Iterator[SimpleNamespace]:
        took = SimpleNamespace(ms=0.0)
        torch.cuda.synchronize()
        start = time.perf_counter()
        yield took
        torch.cuda.synchronize()
        took.ms = (time.perf_counter() - start) * 1e3

    def end_node() -> None:
        mm.reset_cast_buffers()
        prefetch.cleanup_prefetch_queues()
        native.vbars_reset_watermark_limits()

    card = SimpleNamespace(device=mm.get_torch_device(), measure=measure)
    return SimpleNamespace(
        sim=card, mm=mm, ops=ops, model_patcher=patcher, dynamic_off=dynamic_off, end_node=end_node
    )


PARTS: dict[str, Callable[[], list[Check] | str]] = {"engine": engine, "dynamic VRAM": dynamic}


def main(arguments: Sequence[str]) -> int:
    """Run all parts, each in its own process, or the one that is named; returns the exit code."""
    reason = why_not()
    if reason is not None:
        print(reason)
        return 0
    if not arguments:
        print(torch.cuda.get_device_name(0), flush=True)
        command = [sys.executable, "-W", "ignore", "-m", "bench.gpu_check"]
        return max(subprocess.run([*command, part]).returncode for part in PARTS)
    checks = PARTS[arguments[0]]()
    print(checks if isinstance(checks, str) else table(arguments[0], checks))
    return int(not isinstance(checks, str) and not all(check.holds for check in checks))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
