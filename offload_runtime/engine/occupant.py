"""What lies in the slots: copies of a unit's weights, and what tells whether they still are what the masters are.

A master that was written or given other memory since has another count of writes, or another address. Torch counts
no writes into tensors that were made in inference mode, as ComfyUI's weights are: `count_writes` makes ordinary ones
of them. A write that goes round the count (`weight.data.copy_()`) is seen by nobody until the next use.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, is_
from typing import NamedTuple

import torch
from torch import nn

from .clock import Stamp
from .lane import Event
from .parts import bytes_as_stored
from .resting import address
from .schedule import Region
from .slots import Slots

Parameters = dict[str, nn.Parameter | None]
"""The `_parameters` of a module."""

Columns = tuple[Sequence[Parameters], Sequence[str], Sequence[nn.Parameter]]

_writes = attrgetter("_version")


class Exchange(NamedTuple):
    """One entry of a module's `_parameters` that is exchanged, and the plain tensors that have its bytes."""

    parameters: Parameters
    name: str
    master: nn.Parameter
    parts: Sequence[torch.Tensor]


def masters_of(exchanges: Sequence[Exchange]) -> list[torch.Tensor]:
    """Return the masters, part by part, a tied one once: it is copied once."""
    return list({id(part): part for exchange in exchanges for part in exchange.parts}.values())


@dataclass(slots=True)
class Occupant:
    """A unit in the slots, with the events that order its use.

    Attributes:
        exchanges: each entry that is exchanged, and its weight.
        views: the same weights in the slots.
        places: their parts there, in the order of `masters_of`.
        slots, region: where they lie.
        arrived: after this event they may be read.
        released: after this event they may be overwritten.
        exchange, restore: the arguments of `setitem` that put the weights in the slots, or the masters, into the
            modules. Mapped at once, no bytecode runs between two of them, so no signal handler can raise there.
        started: when what runs in it began to compute; None while nothing does.
        displaced: whether a unit that this one called has taken the memory; only while it runs.
    """

    exchanges: Sequence[Exchange]
    views: Sequence[nn.Parameter]
    places: Sequence[torch.Tensor]
    slots: Slots
    region: Region
    arrived: Event = None
    released: Event = None
    started: Stamp | None = None
    displaced: bool = False
    exchange: Columns = field(init=False)
    restore: Columns = field(init=False)
    _masters: list[torch.Tensor] = field(init=False)
    _counted: list[torch.Tensor] = field(init=False)
    _state: tuple[list[int], list[int]] = field(init=False)

    def __post_init__(self) -> None:
        parameters, names, masters, _ = zip(*self.exchanges, strict=True)
        self.exchange, self.restore = (parameters, names, self.views), (parameters, names, masters)
        self._masters = masters_of(self.exchanges)
        self._counted = list(filter(_is_counted, self._masters))
        self._state = list(map(address, self._masters)), list(map(_writes, self._counted))

    @property
    def masters(self) -> Sequence[torch.Tensor]:
        """The masters, part by part."""
        return self._masters

    def is_current(self) -> bool:
        """Tell whether its weights are those that were copied: somebody may have replaced or written some."""
        parameters, names, masters = self.restore
        addresses, writes = self._state
        return (
            all(map(is_, map(dict.get, parameters, names), masters))
            and list(map(address, self._masters)) == addresses
            and list(map(_writes, self._counted)) == writes
        )

    def copy_again(self) -> None:
        """Copy the masters to where the views are."""
        with torch.no_grad():
            for place, master in zip(self.places, self._masters, strict=True):
                place.copy_(bytes_as_stored(master), non_blocking=True)


def count_writes(parts: Iterable[torch.Tensor]) -> None:
    """Let torch count the writes into weights, part by part: those made in inference mode become ordinary tensors.

    The objects, their memory and their values stay. Where torch refuses (somebody refers weakly to one), or is too
    old, it stays as it is.
    """
    swap = getattr(torch.utils, "swap_tensors", None)
    for part in parts:
        if swap is not None and type(part) in (nn.Parameter, torch.Tensor) and part.is_inference():
            with torch.inference_mode(False), torch.no_grad():
                twin = torch.empty(0, dtype=part.dtype, device=part.device).set_(
                    part.untyped_storage(), part.storage_offset(), part.shape, part.stride()
                )
                if type(part) is nn.Parameter:
                    twin = nn.Parameter(twin, requires_grad=part.requires_grad)
            twin.__dict__.update(part.__dict__)
            with contextlib.suppress(RuntimeError):
                swap(part, twin)


def _is_counted(part: torch.Tensor) -> bool:
    if part.is_inference():
        return False
    try:
        return part._version >= 0
    except RuntimeError:  # an inference tensor that was given other data
        return False
