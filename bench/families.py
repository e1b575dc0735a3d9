"""What sampling costs with a diffusion model larger than the card. `python -m bench.families [FAMILIES [MANAGERS]]`

Released sizes of ComfyUI's own classes on a simulated RTX 4090 (25 GB/s, 160 TFLOP/s) that is cut to 8 to 24 GiB, one
model alone, no guidance, no LoRA. `core` is ComfyUI by itself, in seconds; `ours` is the same model placed `layerwise`
with all the room that a plan has for weights, as a share of core's time. `first` is the first prompt, which loads the
model and packs its streamed layers; `later` is the same again. Steps after the second are taken to cost what the
second does. `limit` is twenty steps below which no later prompt can be, as a share of core's: what the card computes
when all is resident, or what the link needs for the bytes that cannot stay. Needs ComfyUI in COMFYUI_PATH; dynamic
VRAM runs over the stand-in of `tests/sim/aimdo`. Not modelled: the cost of pinning. No time was measured on a card.
"""

from __future__ import annotations

import functools
import gc
import logging
import sys
import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from tests.sim import PROFILES, Accelerator
from tests.sim.comfyui import ComfyUI
from tests.sim.placing import end_node

from .families_sizes import FAMILIES, Family

PROFILE = PROFILES["rtx4090"]
GIB = 1 << 30
ROOMY = 128
DTYPES = {"bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn}
MANAGERS = ("legacy", "dynamic")


class Cell(NamedTuple):
    """One system on one card: seconds, and bytes of weights and of what else was in use."""

    first: float
    later: float
    step: float
    weights: int
    activations: int

    def times(self) -> tuple[float, float, float, float]:
        """Return the seconds of a first prompt of 4 and of 20 steps, and of a later one of 4 and of 20."""
        first, later, step = self.first, self.later, self.step
        return first + 2 * step, first + 18 * step, later + 2 * step, later + 18 * step


class Sampling:
    """A diffusion model as ComfyUI's loader makes it, without numbers."""

    def __init__(self, comfy: ComfyUI, family: Family, dtype: torch.dtype) -> None:
        import comfy.supported_models as supported

        config = getattr(supported, family.config)(family.sizes_for(comfy.has_dynamic))
        config.set_inference_dtype(dtype, None if dtype is torch.bfloat16 else torch.bfloat16)
        meta = torch.device("meta")
        with comfy.dynamic_off(), meta:
            model = config.get_model({}, "", device=meta)
        model = model.to_empty(device="cpu").requires_grad_(False)
        model.device = torch.device("cpu")
        self.comfy, self.family = comfy, family
        made = getattr(comfy.model_patcher, "CoreModelPatcher", comfy.model_patcher.ModelPatcher)
        self.patcher = made(model, comfy.sim.device, torch.device("cpu"))
        self.weights = sum(parameter.nbytes for parameter in model.parameters())

    def place(self) -> Any:
        """Let the pack stream it, with all the room that a plan has for weights. Returns what must be kept."""
        from offload_runtime.adapter.backends import StreamedToDevice
        from offload_runtime.adapter.dynamic import Paged
        from offload_runtime.adapter.dynamic_order import PageWish
        from offload_runtime.adapter.structure import find_stacks
        from offload_runtime.engine import Ledger
        from offload_runtime.policy import HostTier, Placement

        handle: Any = SimpleNamespace(patcher=self.patcher, socket="model", component="diffusion_model")
        placed: Any
        if self._dynamic:
            placed = Paged(handle, PageWish(Placement.LAYERWISE, False, None, loops=True))
        else:
            room = self.comfy.sim.cap - int(self.comfy.mm.minimum_inference_memory())
            placed = StreamedToDevice(handle, Ledger(), min(self.weights, room), HostTier.PINNED)
        placed.attach(self.patcher, find_stacks(self.patcher.model, paged=self._dynamic))
        return placed

    def sample(self, steps: int) -> None:
        """A sampler's node."""
        model, shape = self.patcher.model, list(self.family.latent)
        reserve = self.comfy.mm.minimum_inference_memory()
        need, least = (model.memory_required([n * shape[0], *shape[1:]]) + reserve for n in (2, 1))
        self.comfy.mm.load_models_gpu([self.patcher], memory_required=need, minimum_memory_required=least)
        for _ in range(steps):
            self.family.step(model.diffusion_model, self.comfy.sim.device)
        torch.accelerator.synchronize()
        if self._dynamic:
            self.comfy.end_node()
        else:
            end_node(self.comfy)

    @property
    def _dynamic(self) -> bool:
        return bool(getattr(self.patcher, "is_dynamic", bool)())


@functools.cache
def run(name: str, dtype: str, card: int, manager: str, *, ours: bool) -> Cell:
    """Sample three times."""
    with Accelerator(PROFILE, shapes=True, cap=card * GIB) as sim, torch.inference_mode():
        comfy = ComfyUI(sim, dynamic=manager == "dynamic")
        try:
            sampling = Sampling(comfy, FAMILIES[name], DTYPES[dtype])
            placed = sampling.place() if ours else None
            seconds = []
            for steps in (2, 1, 2):
                with sim.measure() as measured:
                    sampling.sample(steps)
                seconds.append(measured.ms / 1e3)
            activations = sim.memory.peak - sampling.patcher.loaded_size()
            del placed
            first, one, two = seconds
            return Cell(first, two, two - one, sampling.weights, activations)
        finally:
            gc.collect()
            comfy.close()


def rows(names: list[str], managers: list[str]) -> Iterator[str]:
    """Yield the lines of the table."""
    for name in names:
        for dtype, cards in FAMILIES[name].cards.items():
            roomy = run(name, dtype, ROOMY, "legacy", ours=False)
            for manager in managers:
                for card in cards:
                    core, ours = (run(name, dtype, card, manager, ours=who) for who in (False, True))
                    stay_out = roomy.weights + roomy.activations - card * GIB
                    limit = 20 * max(roomy.step, stay_out / PROFILE.link) / core.times()[3]
                    cells = "".join(
                        f"{theirs:9.2f} {cost / theirs:6.3f}"
                        for theirs, cost in zip(core.times(), ours.times(), strict=True)
                    )
                    size = f"{roomy.weights / 1e9:.1f} GB"
                    yield f"{name:14}{dtype:5}{size:>8}{card:4} GiB {manager:8}|{cells} {limit:7.3f}"


def main(arguments: list[str]) -> None:
    """Print the table."""
    names, managers = (
        given.split(",")
        for given in (arguments + [",".join(FAMILIES), ",".join(MANAGERS)][len(arguments) :])[:2]
    )
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    heads = ("first 4", "first 20", "later 4", "later 20")
    print(f"{'':41}|{''.join(f'{head:^16}' for head in heads)}   (simulated)")
    print(
        f"{'family':14}{'':5}{'weights':>8}{'card':>8} {'manager':8}|{'core s   ours'.rjust(16) * 4}   limit"
    )
    for line in rows(names, managers):
        print(line, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
