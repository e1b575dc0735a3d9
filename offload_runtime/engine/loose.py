"""Loose tensors: parameters and buffers that belong to no unit, and that nobody brings to the device on its way.

They are on the device for as long as the component is loaded, all in one block, and afterwards the very same
tensors are back on the host. What was written to them meanwhile is written to the host's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import nn

from .slots import Slots, layout_of, packed_bytes, views_into, why_unmovable

Place = tuple[dict[str, Any], str]
"""A module's `_parameters` or `_buffers`, and a name in there."""


class _Stay(NamedTuple):
    """One entry that is on the device now."""

    entries: dict[str, Any]
    name: str
    master: torch.Tensor
    there: torch.Tensor


def is_plain(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor is nothing but numbers, so that it can be copied into a block."""
    return type(tensor) in (nn.Parameter, torch.Tensor) and not tensor.is_meta


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor with the strides that a copy has: an expanded one is written out, as by `to`."""
    if why_unmovable(tensor) is None:
        return tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


class LooseTensors:
    """What is loose in one model, while it is loaded to `device`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._block: Slots | None = None
        self._written = 0
        self._stays: list[_Stay] = []

    @property
    def nbytes(self) -> int:
        """The device memory that they take now."""
        return self._block.capacity if self._block is not None else 0

    def bring(self, places: Iterable[Place]) -> None:
        """Put what is on the host in some places on the device.

        Raises:
            torch.OutOfMemoryError: there is no room for it; nothing has been moved.
        """
        self.give_back()
        found = [(entries, name, entries[name]) for entries, name in places]
        found = [
            (e, n, getattr(t, _MASTER, t)) for e, n, t in found
        ]  # of a clone that was not told to let go
        found = [(e, n, t) for e, n, t in found if t.device != self._device and is_plain(t)]
        masters = list({id(master): master for _, _, master in found}.values())
        if not masters:
            return
        there = self._copy(masters)
        for entries, name, master in found:
            entries[name] = there[id(master)]
            self._stays.append(_Stay(entries, name, master, there[id(master)]))

    def give_back(self) -> None:
        """Put the host's tensors back, except where somebody has put another one since."""
        if self._block is not None and self._block.version != self._written:
            with torch.inference_mode():
                for stay in self._stays:
                    stay.master.copy_(stay.there)
        for entries, name, master, there in self._stays:
            if entries.get(name) is there:
                entries[name] = master
        self._stays.clear()
        self._block = None

    def _copy(self, masters: list[torch.Tensor]) -> dict[int, torch.Tensor]:
        """Copy them to the device in one piece; return id of a master → its copy."""
        size, layout = packed_bytes(masters), layout_of([_dense(master) for master in masters])
        self._block = block = Slots(size, self._device)
        gathered = torch.empty(size, dtype=torch.uint8)
        with torch.inference_mode():
            for place, master in zip(views_into(gathered, 0, layout), masters, strict=True):
                place.copy_(master)
            block.region(0, size).copy_(gathered)
        there: dict[int, torch.Tensor] = {}
        for master, parameter in zip(masters, block.views(0, layout), strict=True):
            copy = parameter if isinstance(master, nn.Parameter) else parameter.detach()
            setattr(copy, _MASTER, master)
            there[id(master)] = copy
        self._written = block.version
        return there


_MASTER = "_layerwise_master"
