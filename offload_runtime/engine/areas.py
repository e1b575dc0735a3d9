"""The areas of the slots: one for layers, and one for the parts of split layers.

A part runs while its layer does, so neither may be in the other's way. With an area of its own, each kind has
one running unit at a time, and is scheduled as if it were alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from .schedule import Fetch, Region, Schedule, largest_neighbours
from .slots import ALIGNMENT


class Areas:
    """Where each unit lies in slots of `capacity` bytes.

    Args:
        sizes: unit → bytes; the layers, then the parts of layers.
        layers: how many of them are layers.
        budget: bytes that the slots may take; one layer, or its rest and one part, is always let in.
        ahead: whether there shall be room for the next unit beside the running one.
    """

    def __init__(
        self, sizes: Sequence[int], layers: int, budget: int | None = None, *, ahead: bool = True
    ) -> None:
        self.sizes = tuple(sizes)
        self._layers = layers
        whole, parts = self.sizes[:layers], self.sizes[layers:]
        part = max(parts, default=0)
        largest = max(whole, default=0)
        room = largest_neighbours(whole) if ahead else largest
        if budget is not None:
            budget = budget // ALIGNMENT * ALIGNMENT
            room = max(largest, min(room, budget - part))
        for_parts = max(part, min(sum(parts), (budget or 0) - room)) if ahead else part
        self.capacity = room + for_parts
        self._trace: Sequence[int] = ()
        self._areas = (
            Schedule(room, (*whole, *[0] * len(parts))),
            Schedule(for_parts, (*[0] * len(whole), *parts), start=room),
        )

    def expect(self, trace: Sequence[int]) -> None:
        """Take the order in which units are expected to run. Forgets what lies in the slots."""
        self._trace = trace
        for area in self._areas:
            area.expect(trace)

    def follow(self, trace: Sequence[int]) -> None:
        """Take the order that is expected now, unless it is the one that was taken last."""
        if trace is not self._trace:
            self._trace = trace
            for area in self._areas:
                area.revise(trace)

    def demand(self, unit: int, position: int, running: Sequence[int] = ()) -> Fetch:
        """Make room for a unit that runs now, in others that give way last."""
        return self._area(unit).demand(unit, position, running)

    def claim(self, unit: int, region: Region) -> tuple[int, ...]:
        """Let a unit lie where it lay before; return those that give way."""
        return self._area(unit).claim(unit, region)

    def ahead(self, running: Iterable[int], position: int) -> Iterator[Fetch]:
        """Yield the copies to start while units run, one in another; `position` is the innermost's place."""
        for area in self._areas:
            yield from area.ahead(running, position)

    def drop(self, unit: int) -> None:
        """Forget one unit: what lies in the slots is stale, or has been given up."""
        self._area(unit).drop(unit)

    def _area(self, unit: int) -> Schedule:
        return self._areas[unit >= self._layers]
