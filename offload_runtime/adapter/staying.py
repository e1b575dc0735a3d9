"""Which weights stay on the device, and how ComfyUI is told.

ComfyUI's own choice keeps the largest operations, and takes off the room that it is given what it would need to
stream the others: three times the largest operation. Nothing of a streamed layer passes through that, and slots are
counted already, so a budget would not be used up. Here whole layers stay, spread evenly over the model so that the
link never idles, and single operations take what is left.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import comfy.model_management as mm
from torch import nn

from ..engine import Layer

Listed = tuple[Any, ...]
"""An entry of core's list of what may be placed: cost of streaming it, bytes, name, module, parameters."""

_BESIDE, _IN_A_LAYER, _STREAMED, FIRST_TO_GO = 0, -1, -2, -3
"""What core sorts by: it places the highest first, and takes the lowest back first. As a cost it reserves nothing."""


class Staying:
    """The operations of one model that stay on the device.

    Args:
        listed: what core may place.
        layers: the layers that are streamed where they do not stay.
        room: bytes of weights that may stay.
        there: names of operations that are on the device, and stay as far as there is room.

    Attributes:
        bytes: how many bytes do.
    """

    def __init__(
        self,
        listed: Iterable[Listed] = (),
        layers: Sequence[Layer] = (),
        room: float = 0,
        there: frozenset[str] = frozenset(),
    ) -> None:
        self.bytes = 0
        self._room = room
        self._names: set[str] = set()
        owner = {id(module): at for at, layer in enumerate(layers) for module in layer.module.modules()}
        beside: list[Listed] = []
        inside: defaultdict[int, list[Listed]] = defaultdict(list)
        for entry in listed:
            at = owner.get(id(entry[3]))
            (beside if at is None else inside[at]).append(entry)
            if entry[2] in there:
                self._keep([entry])
        self._keep_beside(beside)
        self._keep_layers([inside[at] for at in sorted(inside)])
        self._inside = frozenset(entry[2] for entries in inside.values() for entry in entries)

    def ranked(self, listed: Iterable[Listed]) -> list[Listed]:
        """Return core's list so that core places what stays when it is given one byte more than that, and no more.

        New versions of core also reserve room for the next few entries, so empty ones come behind what stays.
        """
        ranked = [(self._rank(entry[2]), *entry[1:]) for entry in listed]
        spacers = range(int(mm.NUM_STREAMS))
        return ranked + [(_IN_A_LAYER, 0, f"layerwise_offload.{i}", nn.Module(), {}) for i in spacers]

    def _rank(self, name: str) -> int:
        if name not in self._names:
            return _STREAMED
        return _IN_A_LAYER if name in self._inside else _BESIDE

    def _keep_beside(self, entries: Sequence[Listed]) -> None:
        """Keep what is in no layer first: where it does not fit, core streams it through buffers of its own."""
        if sum(entry[1] for entry in entries) > self._room:
            self._room -= max(entry[0] for entry in entries) * (int(mm.NUM_STREAMS) + 1)
        self._keep_operations(entries)

    def _keep_layers(self, layers: Sequence[Sequence[Listed]]) -> None:
        sizes = [sum(entry[1] for entry in entries) for entries in layers]
        room = max(0.0, self._room - self.bytes)
        share = min(1.0, room / max(1, sum(sizes)))
        due = 0.0
        others: list[Listed] = []
        for entries, size in zip(layers, sizes, strict=True):
            due += share * size
            if due >= size / 2 and self._keep(entries):
                due -= size
            else:
                others.extend(entries)
        self._keep_operations(others)

    def _keep_operations(self, entries: Sequence[Listed]) -> None:
        for entry in sorted(entries, key=lambda entry: -entry[1]):
            self._keep([entry])

    def _keep(self, entries: Sequence[Listed]) -> bool:
        size = sum(entry[1] for entry in entries if entry[2] not in self._names)
        if self.bytes + size > self._room:
            return False
        self.bytes += size
        self._names.update(entry[2] for entry in entries)
        return True
