"""How weights come into a slot: as one block or tensor by tensor, on the copy stream or on a thread of its own."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .lane import Event, Lane
from .ledger import Ledger
from .occupant import Exchange, Occupant, masters_of
from .parts import bytes_as_stored
from .profiling import named
from .schedule import Region
from .slots import Slots, layout_of
from .tiers import MemoryTier, Tier


class Carrier:
    """Copies units to the device, and notes what was copied from where.

    Args:
        lane: the way to the compute device.
        tier: where the masters live.
        ledger: counts what is copied.
        ahead: whether the host goes on while it is copied.
    """

    def __init__(self, lane: Lane, tier: Tier, ledger: Ledger, *, ahead: bool) -> None:
        self._lane = lane
        self._tier = tier
        self._ledger = ledger
        self._ahead = ahead

    def bring(
        self, slots: Slots, region: Region, exchanges: Sequence[Exchange], name: str, after: tuple[Event, ...]
    ) -> Occupant:
        """Start to copy a unit into a region of the slots, behind some events."""
        masters = masters_of(exchanges)
        places = slots.views(region.start, layout_of(masters))
        weights = list({id(exchange.master): exchange.master for exchange in exchanges}.values())
        in_slot = dict(zip(map(id, weights), slots.weights(region.start, weights), strict=True))
        occupant = Occupant(exchanges, [in_slot[id(e.master)] for e in exchanges], places, slots, region)
        block = self._tier.packed(masters)

        def transfer() -> None:
            # The mode is the thread's own, and masters may have gradients on.
            with torch.no_grad(), named("copy", name):
                if block is not None:
                    slots.region(region.start, block.numel()).copy_(block, non_blocking=True)
                else:
                    for place, master in zip(places, masters, strict=True):
                        place.copy_(bytes_as_stored(master), non_blocking=True)

        background = self._ahead and self._tier.blocks_the_host(block)
        queue = self._lane.copy_in_background if background else self._lane.copy
        moved = sum(master.nbytes for master in masters)
        told = self._ledger.copy_of(name, self._lane.name, moved, self._source(block), background=background)
        with named("ask for", name):  # most profilers record this thread only, and not one that copies
            occupant.arrived = queue(after, transfer, told)
        self._tier.finish(masters)
        self._ledger.record_move(self._tier.name, moved)
        return occupant

    def bring_again(self, occupant: Occupant, name: str, after: tuple[Event, ...]) -> None:
        """Copy a unit to where it was, and let computing wait for it."""
        moved = sum(master.nbytes for master in occupant.masters)
        told = self._ledger.copy_of(name, self._lane.name, moved, self._source(None))
        with named("copy again", name):
            occupant.arrived = self._lane.copy(after, occupant.copy_again, told)
        self._ledger.record_move(self._tier.name, moved)
        self._lane.wait(occupant.arrived)

    def _source(self, block: torch.Tensor | None) -> str:
        """Say where masters are copied from."""
        if self._tier.name != MemoryTier.name:
            return self._tier.name
        return "memory" if self._tier.blocks_the_host(block) else "pinned memory"
