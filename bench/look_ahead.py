"""Whether copying a block ahead of its use would help ComfyUI's dynamic VRAM. `python -m bench.look_ahead [MODELS]`

With nothing resident, an encoder runs as core runs it, operation by operation, and with each block cast as a whole
through core's own `cast_modules_with_vbar` while the block before it computes. On the simulated RTX 4090, second
run, milliseconds: CLIP-L 11.2 and 11.3, SigLIP 36.0 and 36.1, T5-XXL 384 and 385, Qwen-7B 569 and 571; on a host
that takes 20 us for a launch instead of 5 T5-XXL takes 386 and 387; its first run, which fills the pins, 963 and
963. Core runs ahead of the device over two streams, so the link is busy all the time; the block way only holds
twice the buffers. So the pack has no look-ahead there. Needs a ComfyUI with dynamic VRAM in COMFYUI_PATH.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch

from tests.sim import PROFILES, Accelerator
from tests.sim.comfyui import ComfyUI
from tests.sim.crosscheck.standins import build

MODELS = ("clip_l", "siglip", "t5xxl", "qwen7b")
CASES = {"second run": (5, 2), "slow host": (20, 2), "first run": (5, 1)}
"""What is measured → microseconds of a launch, and which run."""


class Ahead:
    """Casts each block of a model while the one before it computes."""

    def __init__(self, comfy: ComfyUI, blocks: list[Any]) -> None:
        self._comfy, self._blocks = comfy, blocks
        self._paged = [[m for m in block.modules() if hasattr(m, "_v")] for block in blocks]
        self._cast: dict[int, Any] = {}

    @contextmanager
    def installed(self) -> Iterator[None]:
        for index, block in enumerate(self._blocks):
            block.forward = self._wrapped(index, block.forward)
        try:
            yield
        finally:
            for index, block in enumerate(self._blocks):
                del block.forward
                self._finish(index)

    def _wrapped(self, index: int, forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            self._start(index)
            self._comfy.mm.sync_stream(self._comfy.sim.device, self._cast[index])
            self._start(index + 1)
            try:
                return forward(*args)
            finally:
                self._finish(index)

        return run

    def _start(self, index: int) -> None:
        if index < len(self._blocks) and index not in self._cast:
            device = self._comfy.sim.device
            cast = self._comfy.ops.cast_modules_with_vbar
            self._cast[index] = cast(self._paged[index], None, device, None, True)

    def _finish(self, index: int) -> None:
        if index in self._cast:
            stream = self._cast.pop(index)
            stream.wait_stream(self._comfy.mm.current_stream(self._comfy.sim.device))
            prefetch = importlib.import_module("comfy.model_prefetch")
            prefetch.cleanup_prefetched_modules(self._blocks[index], self._paged[index])


def measure(name: str, case: str, *, ahead: bool) -> tuple[float, float]:
    """Return the milliseconds of a run, and the megabytes of weights on the device at its peak."""
    launch, runs = CASES[case]
    profile = replace(PROFILES["rtx4090"], launch_us=launch)
    with Accelerator(profile, shapes=True, cap=1 << 40) as sim, torch.inference_mode():
        comfy = ComfyUI(sim)
        model: Any = build(name, comfy.ops.manual_cast)
        comfy.enable_dynamic()
        patcher = comfy.model_patcher.ModelPatcherDynamic(model, sim.device, torch.device("cpu"))
        given = model.sample(sim.device)
        for _ in range(runs):
            sim.synchronize()
            sim.memory.reset_peak()
            with sim.measure() as m:
                comfy.mm.load_models_gpu([patcher])
                patcher._vbar_get().set_watermark(0)
                with Ahead(comfy, list(model.blocks)).installed() if ahead else nullcontext():
                    model(given)
            comfy.end_node()
        result = m.ms, sim.memory.weights_peak / 1e6
        comfy.close()
    return result


def main(arguments: list[str]) -> None:
    print(f"{'model':8} {'case':11} {'core ms':>9} {'MB':>6} {'ahead ms':>9} {'MB':>6}   (simulated)")
    for name in arguments[0].split(",") if arguments else MODELS:
        for case in CASES:
            (core, held), (ours, buffers) = (measure(name, case, ahead=ahead) for ahead in (False, True))
            print(f"{name:8} {case:11} {core:9.1f} {held:6.0f} {ours:9.1f} {buffers:6.0f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
