"""The checks of `bench.gpu_check` on the simulated card, so that they are known to run. `python -m bench.gpu_rehearsal`

The engine's part runs small and with numbers; dynamic VRAM, where the ComfyUI in COMFYUI_PATH has it, in real sizes
and without. Exits with 1 when a claim does not hold.
"""

from __future__ import annotations

import gc
import sys

import torch

from offload_runtime.engine.check import Check, Geometry, Pins, Setup, engine_checks
from tests.sim import Accelerator
from tests.sim.aimdo import vbar
from tests.sim.comfyui import ComfyUI

from .gpu_check import table
from .gpu_dynamic import PAGE, ROOM, native_checks, prompt_checks

SMALL = Geometry(1024, 8, 2048, 6, 64, gated=True, bias=False)


def engine() -> list[Check]:
    """Check the engine on small layers, by the card's own clock."""
    with Accelerator("rtx4090", cap=1 << 30) as sim:
        return engine_checks(Setup(sim.device, SMALL, Pins(sim.pin)))


def ranges() -> list[Check]:
    """Check the stand-in of the native layer."""
    with Accelerator("rtx4090", cap=24 * PAGE, shapes=True):
        return native_checks(vbar)


def prompts() -> list[Check]:
    """Check what a prompt costs; there are no numbers to compare."""
    with Accelerator("rtx4090", cap=ROOM, shapes=True) as sim:
        comfy = ComfyUI(sim)
        try:
            if not comfy.has_dynamic:
                return []
            comfy.enable_dynamic()
            return [check for check in prompt_checks(comfy) if "bits" not in check.claim]
        finally:
            gc.collect()
            comfy.close()


def main() -> int:
    """Print the tables; returns the exit code."""
    torch.set_num_threads(1)
    parts = {"engine": engine(), "ranges of pages": ranges(), "a new prompt": prompts()}
    for part, checks in parts.items():
        print(table(f"{part}, simulated", checks))
    return int(not all(check.holds for checks in parts.values() for check in checks))


if __name__ == "__main__":
    sys.exit(main())
