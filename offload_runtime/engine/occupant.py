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

from .lane import Event
from .resting import address
from .schedule import Region
from .slots import Slots

Parameters = dict[str, nn.Parameter | None]
"""The `_parameters` of a module."""

Columns = tuple[Sequence[Parameters], Sequence[str], Sequence[nn.Parameter]]

_writes = attrgetter("_version")


class Exchange(NamedTuple):
    """One entry of a module's `_parameters` that is exchanged."""

    parameters: Parameters
    name: str
    master: nn.Parameter


def masters_of(exchanges: Sequence[Exchange]) -> list[nn.Parameter]:
    """Return the masters, a tied one once: it is copied once."""
    return list({id(e.master): e.master for e in exchanges}.values())


@dataclass(slots=True)
class Occupant:
    """A unit in the slots, with the events that order its use.

    Attributes:
        exchanges: each entry that is exchanged, and its weight.
        views: the same weights in the slots.
        slots, region: where they lie.
        arrived: after this event they may be read.
        released: after this event they may be overwritten.
        exchange, restore: the arguments of `setitem` that put the weights in the slots, or the masters, into the
            modules. Mapped at once, no bytecode runs between two of them, so no signal handler can raise there.
        displaced: whether a unit that this one called has taken the memory; only while it runs.
    """

    exchanges: Sequence[Exchange]
    views: Sequence[nn.Parameter]
    slots: Slots
    region: Region
    arrived: Event = None
    released: Event = None
    displaced: bool = False
    exchange: Columns = field(init=False)
    restore: Columns = field(init=False)
    _masters: list[nn.Parameter] = field(init=False)
    _counted: list[nn.Parameter] = field(init=False)
    _state: tuple[list[int], list[int]] = field(init=False)

    def __post_init__(self) -> None:
        parameters, names, masters = zip(*self.exchanges, strict=True)
        self.exchange, self.restore = (parameters, names, self.views), (parameters, names, masters)
        self._masters = masters_of(self.exchanges)
        self._counted = list(filter(_is_counted, self._masters))
        self._state = list(map(address, self._masters)), list(map(_writes, self._counted))

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
            for exchange, view in zip(self.exchanges, self.views, strict=True):
                view.copy_(exchange.master, non_blocking=True)


def count_writes(parameters: Iterable[nn.Parameter]) -> None:
    """Let torch count the writes into parameters: those made in inference mode become ordinary tensors.

    The objects, their memory and their values stay. Where torch refuses (somebody refers weakly to one), or is too
    old, it stays as it is.
    """
    swap = getattr(torch.utils, "swap_tensors", None)
    for parameter in parameters:
        if swap is not None and type(parameter) is nn.Parameter and parameter.is_inference():
            with torch.inference_mode(False), torch.no_grad():
                memory = torch.empty(0, dtype=parameter.dtype, device=parameter.device).set_(
                    parameter.untyped_storage(),
                    parameter.storage_offset(),
                    parameter.shape,
                    parameter.stride(),
                )
                twin = nn.Parameter(memory, requires_grad=parameter.requires_grad)
            twin.__dict__.update(parameter.__dict__)
            with contextlib.suppress(RuntimeError):
                swap(parameter, twin)


def _is_counted(parameter: nn.Parameter) -> bool:
    if parameter.is_inference():
        return False
    try:
        return parameter._version >= 0
    except RuntimeError:  # an inference tensor that was given other data
        return False
