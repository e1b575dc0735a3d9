"""Whether layers that come out of slots compute what the same layers compute when they stay on the device."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch

from ..lane import Lane
from ..ledger import Ledger
from ..mapped import MappedWeights
from ..packed import PackedWeights
from ..stacks import Layer, Stack
from ..store_file import write
from ..streamer import Streamer
from ..tiers import FileTier, MappedTier, MemoryTier, Tier
from .claims import Check
from .kinds import Kinds, run
from .link import Step
from .pins import Pins

_USES = 3
"""The first has nothing to go by, the second knows the order, the third finds all in place."""


class _Way(NamedTuple):
    """One way to stream.

    Attributes:
        name: what a person calls it.
        tier: where the masters live.
        budget: bytes for slots, or None.
        look_ahead: whether the next layers are copied while one computes.
        pins: the blocks that shall be pinned, where they shall.
    """

    name: str
    tier: Tier
    budget: int | None = None
    look_ahead: bool = True
    pins: PackedWeights | None = None


def streamed_equals_resident(
    kinds: Kinds,
    device: torch.device,
    folder: Path,
    pins: Pins,
    step: Step,
) -> Iterator[Check]:
    """Compare every layer's result bit for bit, for each way to stream to a device of its own memory.

    Args:
        kinds: the layers; they stay on the host.
        device: the accelerator.
        folder: where a file may be written.
        pins: pins memory where it is.
        step: called between the ways.

    Raises:
        OSError: the file cannot be written.
    """
    expected, steady = _resident(kinds, device)
    if steady is not None:
        yield steady
        return
    packed = PackedWeights(*pins)
    for way in _from_memory(kinds, device, packed):
        step()
        yield _compared(kinds, device, way, expected)
    with _in_file(kinds, folder) as weights:
        step()
        yield _compared(kinds, device, _Way("from a file", FileTier(device, weights)), expected)


def _from_memory(kinds: Kinds, device: torch.device, packed: PackedWeights) -> Iterator[_Way]:
    parts = 2 * max(p.nbytes for p in kinds.layers.parameters())
    for name, budget, ahead in (
        ("from pinned memory", None, True),
        ("from pinned memory in parts", parts, True),
        ("from pinned memory without look-ahead", None, False),
    ):
        yield _Way(name, MemoryTier(device, packed), budget, ahead, packed)
    ordinary = PackedWeights(lambda block: False)
    yield _Way("from pageable memory", MemoryTier(device, ordinary, pinned=False))


def mapped_equals_resident(kinds: Kinds, folder: Path, step: Step) -> list[Check]:
    """Compare every layer's result bit for bit where the CPU computes, and reads layers from a file.

    Args:
        kinds: the layers.
        folder: where the file may be written.
        step: called in between.

    Raises:
        OSError: the file cannot be written.
    """
    cpu = torch.device("cpu")
    expected, steady = _resident(kinds, cpu)
    if steady is not None:
        return [steady]
    with _in_file(kinds, folder) as weights:
        step()
        return [_compared(kinds, cpu, _Way("from a file", MappedTier(weights)), expected)]


def _resident(kinds: Kinds, device: torch.device) -> tuple[list[torch.Tensor], Check | None]:
    """Return the results on the device, and a failed check if it does not repeat them."""
    layers, given = copy.deepcopy(kinds.layers).to(device), kinds.given.to(device)
    expected, again = run(layers, given), run(layers, given)
    differs = _first_difference(kinds.names, expected, again)
    if not differs:
        return expected, None
    found = f"no: {differs} gives other results each time, so nothing can be compared"
    return expected, Check("the device repeats its results bit for bit", found, False)


def _compared(kinds: Kinds, device: torch.device, way: _Way, expected: Sequence[torch.Tensor]) -> Check:
    claim = f"streamed equals resident, {way.name}"
    layers = tuple(
        Layer(f"layers.{i}", layer, tuple(layer.children())) for i, layer in enumerate(kinds.layers)
    )
    ledger = Ledger()
    streamer = Streamer(
        [Stack("layers", layers)],
        Lane(device),
        way.tier,
        ledger,
        way.budget,
        look_ahead=way.look_ahead,
    )
    streamer.pack()
    refused = way.pins is not None and not way.pins.pinned_bytes
    given = kinds.given.to(device)
    try:
        for use in range(1, _USES + 1):
            streamer.install()
            streamer.allocate()
            differs = _first_difference(kinds.names, expected, run(kinds.layers, given))
            if differs:
                return Check(claim, f"no: {differs} differs in use {use}", False)
    finally:
        streamer.uninstall()
        streamer.free()
    if not ledger.moved_bytes:
        return Check(claim, "no: nothing was streamed", False)
    found = f"yes: {len(layers)} layers, {_USES} uses"
    if refused:
        return Check(claim, f"{found}, from memory that could not be pinned", True)
    return Check(claim, found, True)


@contextmanager
def _in_file(kinds: Kinds, folder: Path) -> Iterator[MappedWeights]:
    """Let the weights of the layers rest in a file while inside."""
    with tempfile.TemporaryDirectory(
        prefix="layerwise_offload_check_", dir=folder, ignore_cleanup_errors=True
    ) as own:
        file = Path(own) / "layers.safetensors"
        parameters = dict(kinds.layers.named_parameters())
        write(file, {name: p.detach() for name, p in parameters.items()}, lambda more: None)
        weights = MappedWeights()
        weights.adopt(parameters, [file])
        try:
            yield weights
        finally:
            weights.release_all(kinds.layers.parameters())


def _first_difference(
    names: Sequence[str], expected: Sequence[torch.Tensor], found: Sequence[torch.Tensor]
) -> str:
    pairs = zip(names, expected, found, strict=True)
    return next((name for name, one, other in pairs if not _same_bits(one, other)), "")


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))
