"""What a wrapped layer costs Python when nothing is transferred: `python -m bench.call_cost [rounds]`

Real time of this machine's CPU, in microseconds per call, less the time of the same call without a wrapper: medians of
uses taken in turn, so that a busy machine slows all alike. The layer has twenty parameters in ten modules and
computes nothing. Everything is on the CPU: no stream or event is called, by anybody. Peers that are not installed are
left out, with a word.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from offload_runtime.engine import Lane, Layer, Ledger, MemoryTier, PackedWeights, Stack, Streamer
from offload_runtime.engine.spans import Spans

CPU, HOST = torch.device("cpu"), torch.float16
GIVEN, MASK = torch.ones(1, 8), torch.ones(1, 8)
NOTHING, EXCHANGE, COPY = "nothing to exchange", "20 weights exchanged", "20 weights exchanged and copied"


class Block(nn.Module):
    """Twenty parameters, and a forward that only returns."""

    def __init__(self) -> None:
        super().__init__()
        self.maps = nn.ModuleList(nn.Linear(8, 8) for _ in range(8))
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(2))
        self.requires_grad_(False)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return x


@dataclass
class System:
    """Somebody's wrapper on some blocks.

    Attributes:
        case: what there is to do in a call, one of the three above.
        does: how it does that.
        begin: begins a use; not timed.
        calls: how many are timed in a use; 720 are a video decoder's 36 layers, 20 times.
    """

    name: str
    case: str
    does: str
    blocks: Sequence[nn.Module]
    begin: Callable[[], object] = lambda: None
    calls: int = 720

    def microseconds(self) -> float:
        """Return the mean time of a call, in a use that has begun with one pass over the blocks."""
        self.begin()
        self._run(1)
        passes = self.calls // len(self.blocks)
        start = time.perf_counter()
        self._run(passes)
        return (time.perf_counter() - start) * 1e6 / (passes * len(self.blocks))

    def _run(self, passes: int) -> None:
        for _ in range(passes):
            for block in self.blocks:
                block(GIVEN, mask=MASK)


class HalfPrecisionOnHost(MemoryTier):
    """Takes weights in half precision for those on the host: here all memory is the CPU's."""

    def holds(self, tensor: torch.Tensor) -> bool:
        """Tell by the dtype, which costs as much as asking for the device."""
        return tensor.dtype == HOST


def blocks(count: int, dtype: torch.dtype = torch.float32) -> list[Block]:
    """Make some blocks."""
    return [Block().to(dtype) for _ in range(count)]


def stream(layers: Sequence[nn.Module]) -> Streamer:
    """Let our engine run some layers, those in half precision out of slots."""
    host = HalfPrecisionOnHost(CPU, PackedWeights(lambda block: False))
    stack = Stack("blocks", tuple(Layer(f"blocks.{i}", layer) for i, layer in enumerate(layers)))
    ledger = Ledger()
    ledger.begin_run(Spans())
    streamer = Streamer([stack], Lane(CPU), host, ledger)
    streamer.pack()
    streamer.allocate()
    streamer.install()
    return streamer


def first_use(layers: Sequence[nn.Module]) -> Callable[[], object]:
    """Return what lets a new engine run some layers: it wraps all, until it has seen a use."""
    kept: list[Streamer] = []  # wrappers refer to it weakly

    def begin() -> None:
        kept[:] = [stream(layers)]

    return begin


def ours() -> list[System]:
    """Wrap blocks by our engine."""

    def system(name: str, case: str, does: str, layers: list[Block]) -> System:
        return System(name, case, does, layers, stream(layers).install)

    new, two, others = blocks(36), blocks(2, HOST), blocks(34)
    return [
        System("ours, first use", NOTHING, "notes that it runs", new, first_use(new)),
        system("ours", NOTHING, "none: layers of which nothing is streamed are not wrapped", blocks(36)),
        system("ours", EXCHANGE, "dictionary entries; the layers are in their slots", blocks(2, HOST)),
        system("ours, mixed", EXCHANGE, "the same for 2 layers of 36; the others are resident", two + others),
        system("ours", COPY, "the next layer is planned and copied, too", blocks(36, HOST)),
    ]


def accelerate() -> list[System]:
    """Wrap blocks by accelerate's hook, the inputs' device checked as it does by default."""
    from accelerate.hooks import AlignDevicesHook, add_hook_to_module

    def hooked(**options: bool) -> list[nn.Module]:
        hooks = [AlignDevicesHook(CPU, place_submodules=True, **options) for _ in range(2)]
        return [add_hook_to_module(block, hook) for block, hook in zip(blocks(2), hooks, strict=True)]

    return [
        System("accelerate", NOTHING, "AlignDevicesHook: inputs only", hooked()),
        System("accelerate", EXCHANGE, "AlignDevicesHook: to meta and back", hooked(offload=True), calls=8),
    ]


def diffusers() -> list[System]:
    """Wrap blocks by diffusers' group offloading, one block a group; it has no call with nothing to exchange."""
    from diffusers.hooks import apply_group_offloading

    model = nn.Module()
    model.blocks = nn.ModuleList(blocks(2))
    apply_group_offloading(model, CPU, CPU, offload_type="block_level", num_blocks_per_group=1)
    does = "group offloading: `.data` set and set back"
    return [System("diffusers", EXCHANGE, does, list(model.blocks))]


def peers() -> list[System]:
    """Return the peers that are installed."""
    found: list[System] = []
    for peer in (accelerate, diffusers):
        try:
            found += peer()
        except ModuleNotFoundError as error:
            print(f"{peer.__name__} is left out: {error.name} is not installed.")
    return found


def measure(systems: Sequence[System], rounds: int) -> list[float]:
    """Return each system's median, in microseconds per call."""
    times: list[list[float]] = [[] for _ in systems]
    gc.disable()
    try:
        for _ in range(rounds):
            for system, taken in zip(systems, times, strict=True):
                taken.append(system.microseconds())
    finally:
        gc.enable()
    return [statistics.median(taken) for taken in times]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Python's cost of one wrapped layer call.")
    parser.add_argument("rounds", nargs="?", type=int, default=60, help="uses to take the median of")
    rounds = parser.parse_args().rounds
    bare = System("bare", "", "the layer without a wrapper", blocks(12))
    systems = [bare, *ours(), *peers()]
    with torch.inference_mode():
        measure(systems, 3)
        plain, *costs = measure(systems, rounds)
    print(f"{'':15} {'case':32} {'us/call':>8}   (beyond the {plain:.2f} us of the layer without a wrapper)")
    rows = [(system, taken - plain) for system, taken in zip(systems[1:], costs, strict=True)]
    for system, taken in sorted(rows, key=lambda row: (NOTHING, EXCHANGE, COPY).index(row[0].case)):
        print(f"{system.name:15} {system.case:32} {taken:8.2f}   {system.does}")
    for case in (NOTHING, EXCHANGE):
        mine = [taken for system, taken in rows if system.case == case and system.name.startswith("ours")]
        others = [
            taken for system, taken in rows if system.case == case and not system.name.startswith("ours")
        ]
        if others:
            print(f"{case}: ours is at most {max(mine) / min(others):.2f} of the cheapest peer's")


if __name__ == "__main__":
    main()
