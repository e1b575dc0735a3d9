"""Units: what is copied at once. A layer; or, where the slots cannot hold two of them, its large operations.

A unit is wrapped on its own, so that its weights are in a slot only while it runs. The parts of a split layer
run inside that layer, which keeps the rest of its weights (norms, biases, small operations) for as long.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import nn

from .areas import Areas
from .guess import Group
from .parts import distinct_parts
from .schedule import largest_neighbours
from .slots import packed_bytes, why_unmovable
from .stacks import Layer, Stack, parameter_bytes, stack_layers
from .trace import Trace

REST = 16
"""A layer is split until what is left of it takes at most one part in so many of the slots."""

SPARE = 64 << 20
"""Bytes beside two of the largest operations: for small ones, and for copies to go on while the host is late."""

Entry = tuple[dict[str, nn.Parameter | None], str]


class Unit(NamedTuple):
    """A module that is wrapped, and the entries of `_parameters` that are exchanged while it runs."""

    module: nn.Module
    entries: tuple[Entry, ...]

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield its weights, a tied one once."""
        found = (parameters.get(name) for parameters, name in self.entries)
        yield from {id(parameter): parameter for parameter in found if parameter is not None}.values()


class Units:
    """The units of some layers: first the layers, in order, then all operations that could be split off.

    Args:
        layers: the layers.
        room: split the layers for slots of so many bytes; None leaves them whole.

    Attributes:
        all: the units; their place is their number.
        layers: how many of them are layers.
        names: number → name. Streamers of one model may number their units differently, but name them alike.
        groups: each layer with its parts, as far as they are units.
    """

    def __init__(self, layers: Sequence[Layer], room: int | None = None) -> None:
        apart = {part for layer in layers for part in _to_split(layer, room)} if room is not None else set()
        parts = dict.fromkeys(part for layer in layers for part in layer.parts)
        wholes = [Unit(layer.module, tuple(_entries(layer.module, apart))) for layer in layers]
        self.layers = len(wholes)
        self.all = (*wholes, *(Unit(p, tuple(_entries(p)) if p in apart else ()) for p in parts))
        index = {part: len(wholes) + place for place, part in enumerate(parts)}
        self.names = [layer.name for layer in layers] + [""] * len(parts)
        self.groups: list[Group] = []
        for at, layer in enumerate(layers):
            inside = {module: name for name, module in layer.module.named_modules()}
            for part in layer.parts:
                self.names[index[part]] = f"{layer.name}.{inside[part]}"
            split = [part for part in layer.parts if part in apart]
            stack, kind = layer.name.rpartition(".")[0], tuple(inside[part] for part in split)
            self.groups.append(Group((at, *(index[part] for part in split)), kind, stack))

    def last_use(self, trace: Trace) -> list[int]:
        """Return which units ran in the last use, or nothing if that tells nothing of the parts that are split off."""
        numbers = {name: number for number, name in enumerate(self.names)}
        last = [numbers[name] for name in trace.last if name in numbers]
        parts = {unit for group in self.groups for unit in group.units[1:]}
        return [] if parts and parts.isdisjoint(last) else last


def slot_bytes_for(stacks: Iterable[Stack]) -> int:
    """Return the bytes of slots that some stacks are streamed through when nobody sets fewer."""
    layers = list(stack_layers(stacks))
    return min(largest_neighbours([layer.bytes for layer in layers]), enough_room(layers))


def least_slot_bytes(stacks: Iterable[Stack]) -> int:
    """Return the bytes of slots that some stacks take at least, split as far as they can be."""
    units = Units(list(stack_layers(stacks)), 0)
    sizes = [packed_bytes(streamable(unit.parameters())) for unit in units.all]
    return Areas(sizes, units.layers, 0).capacity


def enough_room(layers: Sequence[Layer]) -> int:
    """Return the bytes of slots beyond which nothing gets faster: two operations, of the largest, and some to spare.

    Simulated on a 4090, T5-XXL streams as fast through 235 MB as through two whole layers of 772 MB.
    """
    largest = 0
    for layer in layers:
        parts = [parameter_bytes(part) for part in layer.parts]
        largest = max(largest, layer.bytes - sum(parts), *parts)
    return 2 * largest + SPARE


def room_to_split_for(layers: Sequence[Layer], budget: int | None, *, ahead: bool = True) -> int | None:
    """Return the bytes for slots when they are less than whole layers take, so that layers have to be split.

    Args:
        layers: the layers.
        budget: bytes that the slots may take, or None.
        ahead: whether there shall be room for the next layer beside the running one.
    """
    sizes = [packed_bytes(streamable(layer.module.parameters())) for layer in layers]
    whole = largest_neighbours(sizes) if ahead else max(sizes, default=0)
    enough = enough_room(layers)
    room = enough if budget is None else min(enough, budget)
    return room if room < whole else None


def streamable(parameters: Iterable[nn.Parameter]) -> list[torch.Tensor]:
    """Return the weights that are streamed when they are on the host, part by part, wherever they are now."""
    return distinct_parts(
        p for p in parameters if p.device.type not in ("cpu", "meta") or why_unmovable(p) is None
    )


def _to_split(layer: Layer, room: int) -> Iterator[nn.Module]:
    rest = layer.bytes
    for part in sorted(layer.parts, key=parameter_bytes, reverse=True):
        if rest * REST <= room:
            return
        rest -= parameter_bytes(part)
        yield part


def _entries(
    module: nn.Module, apart: set[nn.Module] | frozenset[nn.Module] = frozenset()
) -> Iterator[Entry]:
    for child in module.modules():
        if child not in apart:
            for name in child._parameters:
                yield child._parameters, name
