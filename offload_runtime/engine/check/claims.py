"""The engine's claims on a device: the same numbers, the link's limit, little memory, overlap from any memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from ..lane import Lane
from ..ledger import Ledger
from ..packed import PackedWeights
from ..stacks import Layer, Stack
from ..streamer import Streamer
from ..tiers import MemoryTier
from ..units import SPARE
from .pins import Pins, pinned_blocks
from .stopwatch import Stopwatch
from .transformer import Geometry, StandIn


class Check(NamedTuple):
    """A claim, what was found, and whether it holds."""

    claim: str
    found: str
    holds: bool


_CHUNK = 32 << 20

T5_LIKE = Geometry(4096, 64, 10240, 6, 4096, gated=True, bias=False)
"""Six blocks with the dimensions of T5-XXL, 2.3 GB, and enough tokens that computing takes about as long as copying."""


@dataclass
class Setup:
    """What is measured, and where.

    Attributes:
        device: the accelerator.
        geometry: the stack.
        pins: pins memory where it is.
        step: called between measurements.
    """

    device: torch.device
    geometry: Geometry
    pins: Pins
    step: Callable[[], None] = lambda: None
    _watch: Stopwatch = field(init=False)

    def __post_init__(self) -> None:
        self._watch = Stopwatch(self.device)

    def clock(self, run: Callable[[], object]) -> float:
        """Run something to its end on the device, and return the milliseconds that took."""
        return self._watch.seconds(run) * 1e3

    def peak(self) -> int:
        """Return the most bytes that torch has allocated on the device since this was last asked."""
        module: Any = torch.get_device_module(self.device)
        most = int(module.max_memory_allocated(self.device))
        module.reset_peak_memory_stats(self.device)
        return most


class Runs(NamedTuple):
    """Times of one model in milliseconds, its sizes in bytes, and whether all ways gave the same numbers."""

    resident: float
    pinned: float
    pageable: float
    copy_pinned: float
    copy_pageable: float
    copy_by_ring: float
    equal: bool
    operation: int
    model: int
    slots: int
    more_than_resident: int


def engine_checks(setup: Setup) -> list[Check]:
    """Run the stack resident and streamed, and compare.

    Raises:
        torch.OutOfMemoryError: the device has no room for the stack.
        MemoryError: no memory can be pinned.
    """
    with torch.inference_mode():
        runs = _measure(setup)
    limit = max(runs.copy_pinned, runs.resident)
    sum_of_both = runs.copy_pageable + runs.resident
    hidden = min(1.0, (sum_of_both - runs.pageable) / min(runs.copy_pageable, runs.resident))
    return [
        Check("streamed and resident give the same bits", f"equal: {runs.equal}", runs.equal),
        Check(
            "streaming from pinned memory takes no more than 1.15 x the slower of link and computing",
            f"{runs.pinned:.1f} ms; link {runs.copy_pinned:.1f} ms, computing {runs.resident:.1f} ms",
            runs.pinned <= 1.15 * limit,
        ),
        Check(
            "two of the largest operations and 64 MB are on the device, not the model",
            f"{runs.slots / 1e6:.0f} MB of slots, operations of up to {runs.operation / 1e6:.0f} MB, "
            f"a model of {runs.model / 1e6:.0f} MB",
            runs.slots <= 2 * runs.operation + SPARE,
        ),
        Check(
            "what is allocated stays within that",
            f"{runs.more_than_resident / 1e6:.0f} MB beside activations",
            runs.more_than_resident <= 1.1 * runs.slots,
        ),
        Check(
            "copying from pageable memory overlaps computing too",
            f"{runs.pageable:.1f} ms; copying {runs.copy_pageable:.1f} ms, computing {runs.resident:.1f} ms: "
            f"{hidden:.0%} hidden",
            hidden >= 0.5,
        ),
        Check(
            "a pinned ring in between would not copy pageable memory 1.2 x as fast",
            f"straight {runs.copy_pageable:.1f} ms, through a ring {runs.copy_by_ring:.1f} ms",
            runs.copy_pageable <= 1.2 * runs.copy_by_ring,
        ),
    ]


def _measure(setup: Setup) -> Runs:
    model = _stack(setup.geometry)
    layers = [Layer(f"blocks.{i}", block, _operations(block)) for i, block in enumerate(model.blocks)]
    bytes_ = sum(layer.bytes for layer in layers)
    for module in filter(None, (model.norm, model.head)):
        module.to(setup.device)
    given = (
        torch.randn(1, setup.geometry.tokens, setup.geometry.hidden).to(setup.geometry.dtype).to(setup.device)
    )
    outputs, times, slots, peaks = [], {}, 0, {}
    for way in ("pinned", "pageable"):
        setup.step()
        with _streamed(layers, setup, pinned=way == "pinned") as (streamer, ledger):

            def use(streamer: Streamer = streamer) -> torch.Tensor:
                streamer.install()
                output: torch.Tensor = model(given)
                return output

            times[way], out, peaks[way] = _second_run(setup, use)
            outputs.append(out)
            slots = max(slots, ledger.slot_peak)
    masters = [p.detach() for layer in layers for p in layer.module.parameters()]
    copies = _copies(setup, masters, _largest(layers))
    setup.step()
    model.to(setup.device)
    times["resident"], out, peaks["resident"] = _second_run(setup, lambda: model(given))
    outputs.append(out)
    return Runs(
        resident=times["resident"],
        pinned=times["pinned"],
        pageable=times["pageable"],
        copy_pinned=copies["pinned"] * bytes_ / _largest(layers),
        copy_pageable=copies["pageable"],
        copy_by_ring=copies["ring"],
        equal=all(torch.equal(o, outputs[0]) for o in outputs),
        operation=max(p.nbytes for p in masters),
        model=bytes_,
        slots=slots,
        more_than_resident=peaks["pinned"] - (peaks["resident"] - bytes_),
    )


def _copies(setup: Setup, masters: list[torch.Tensor], largest: int) -> dict[str, float]:
    """Return the milliseconds of copying some weights straight and by a ring, and of one layer from pinned memory."""
    setup.step()
    straight = _copy(setup, masters)
    setup.step()
    with pinned_blocks(setup.device, setup.pins, _CHUNK, _CHUNK) as ring:
        by_ring = _copy_by_ring(setup, masters, ring)
    setup.step()
    with pinned_blocks(setup.device, setup.pins, largest) as layer:
        return {"pageable": straight, "ring": by_ring, "pinned": _copy(setup, layer)}


@contextmanager
def _streamed(layers: list[Layer], setup: Setup, *, pinned: bool) -> Iterator[tuple[Streamer, Ledger]]:
    ledger = Ledger()
    tier = MemoryTier(setup.device, PackedWeights(*setup.pins), pinned=pinned)
    streamer = Streamer([Stack("blocks", tuple(layers))], Lane(setup.device), tier, ledger)
    streamer.pack()
    streamer.allocate()
    try:
        yield streamer, ledger
    finally:
        streamer.uninstall()
        streamer.free()


def _second_run(setup: Setup, run: Callable[[], torch.Tensor]) -> tuple[float, torch.Tensor, int]:
    """Return the milliseconds of the second run, its output on the host, and the peak of device memory."""
    outputs = [run().cpu()]
    setup.peak()
    took = setup.clock(lambda: outputs.append(run()))
    return took, outputs[-1].cpu(), setup.peak()


def _copy(setup: Setup, tensors: list[torch.Tensor]) -> float:
    """Return the milliseconds of copying tensors to the device, the best of three times."""

    def copy() -> None:
        for tensor in tensors:
            tensor.to(setup.device, non_blocking=True)

    return min(setup.clock(copy) for _ in range(3))


def _copy_by_ring(setup: Setup, tensors: list[torch.Tensor], ring: list[torch.Tensor]) -> float:
    """Return the milliseconds of copying tensors by way of two pinned chunks, the best of three times."""
    module: Any = torch.get_device_module(setup.device)
    there = torch.empty(max(t.nbytes for t in tensors), dtype=torch.uint8, device=setup.device)
    used: list[Any] = [None, None]

    def copy() -> None:
        chunks = (c for tensor in tensors for c in torch.split(tensor.flatten().view(torch.uint8), _CHUNK))
        for number, chunk in enumerate(chunks):
            slot = number % 2
            if used[slot] is not None:
                used[slot].synchronize()
            ring[slot][: chunk.numel()].copy_(chunk)
            there[: chunk.numel()].copy_(ring[slot][: chunk.numel()], non_blocking=True)
            used[slot] = module.current_stream(setup.device).record_event()

    return min(setup.clock(copy) for _ in range(3))


def _stack(geometry: Geometry) -> StandIn:
    """Build a stack of small random weights; torch's own first values would take longer than all that is measured."""
    with torch.inference_mode(False), torch.no_grad():
        with torch.device("meta"):
            model = StandIn(geometry).to(geometry.dtype)
        return randomize(model.to_empty(device="cpu"))


def _operations(block: torch.nn.Module) -> tuple[torch.nn.Module, ...]:
    return tuple(module for module in block.modules() if isinstance(module, torch.nn.Linear))


def _largest(layers: list[Layer]) -> int:
    return max(layer.bytes for layer in layers)


def randomize(model: StandIn) -> StandIn:
    """Give a stack seeded weights, cut out of one run of random numbers; small, so that it stays finite."""
    model = model.to(model.geometry.dtype).eval().requires_grad_(False)
    largest = max(p.numel() for p in model.parameters())
    noise = torch.randn(largest + 4096, generator=torch.Generator().manual_seed(7)).to(model.geometry.dtype)
    for number, parameter in enumerate(model.parameters()):
        start = number * 37 % 4096
        parameter.copy_(noise[start : start + parameter.numel()].view(parameter.shape) * 0.02)
    return model
