"""What to copy ahead, where to put it, and what gives way. Pure: numbers in, decisions out.

Room beyond two neighbouring layers goes to layers that stay: those that run more than once in a use, spread
evenly over it. Through the rest the others stream by the aggressive rule of Cao, Felten, Karlin and Li ("A study
of integrated prefetching and caching strategies", 1995): always copy the missing layer that is needed soonest,
as soon as there is room; what gives way is what is needed furthest in the future, and never anything needed
before it. A single pass never copies a layer twice.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set
from operator import add
from typing import NamedTuple

NEVER = 1 << 62
"""The position of a next use that is not in the trace."""

TRIES = 8
"""How many more layers than are known to fit are tried."""


class Region(NamedTuple):
    """Bytes `start` to `end` of the slots."""

    start: int
    end: int

    def overlaps(self, other: Region) -> bool:
        """Tell whether two regions share a byte."""
        return self.start < other.end and other.start < self.end


class Fetch(NamedTuple):
    """Copy a layer into a region; the layers that lay there before are gone."""

    layer: int
    region: Region
    evicted: tuple[int, ...]


class Schedule:
    """Which layer lies where in `capacity` bytes, and what comes next.

    Args:
        capacity: bytes of the slots; at least the largest layer.
        sizes: layer → bytes; a layer of no bytes needs no copy.
        start: where these bytes begin.
    """

    def __init__(self, capacity: int, sizes: Sequence[int], start: int = 0) -> None:
        self.capacity = capacity
        self.held: dict[int, Region] = {}
        self.sizes = sizes
        self._start, self._end = start, start + capacity
        self._trace: Sequence[int] = ()
        self._to_copy: list[int] = []  # places in the trace of what takes room
        self._positions: dict[int, list[int]] = {}
        self._staying: dict[int, Region] = {}
        self._stream_from = start  # the bytes before are for those that stay

    def expect(self, trace: Sequence[int]) -> None:
        """Take the order in which layers are expected to run. Forgets what lies in the slots."""
        self.revise(trace)
        self.held.clear()
        self._staying.clear()
        self._stream_from = self._start
        for layer in self._choose_staying():
            region = Region(self._stream_from, self._stream_from + self.sizes[layer])
            self._staying[layer], self._stream_from = region, region.end

    def revise(self, trace: Sequence[int]) -> None:
        """Take another order in mid-use: what lies in the slots stays there, and what was to stay for the use."""
        positions: defaultdict[int, list[int]] = defaultdict(list)
        self._to_copy = [position for position, layer in enumerate(trace) if self.sizes[layer]]
        for position in self._to_copy:
            positions[trace[position]].append(position)
        self._trace, self._positions = trace, dict(positions)

    def drop(self, layer: int) -> None:
        """Forget one layer: what lies in the slots is stale, or has been given up."""
        self.held.pop(layer, None)

    def demand(self, layer: int, position: int, running: Sequence[int] = ()) -> Fetch:
        """Make room for a layer that runs now; everything else may give way.

        Args:
            position: its place in the trace, or -1 when it was not expected.
            running: the layers that it runs in, the outermost first. They give way last.
        """
        self.held.pop(layer, None)
        idle = [other for other in self.held if other not in running]
        streaming = [other for other in idle if other not in self._staying]
        streaming.sort(key=lambda other: -self._next_use(other, position))
        fetch = self._place(layer, streaming)
        if fetch is None:
            # A layer that nobody expected, larger than what streams, or inside another: nothing stays from here on.
            self._staying.clear()
            self._stream_from = self._start
            fetch = self._place(layer, [*idle, *(other for other in running if other in self.held)])
        if fetch is None:
            raise ValueError(
                f"a layer of {self.sizes[layer]} bytes does not fit into slots of {self.capacity}"
            )
        return fetch

    def claim(self, layer: int, region: Region) -> tuple[int, ...]:
        """Let a layer lie in a region again that it lay in before; return those that give way."""
        self.held.pop(layer, None)
        evicted = tuple(other for other, place in self.held.items() if place.overlaps(region))
        for other in evicted:
            del self.held[other]
        self.held[layer] = region
        return evicted

    def ahead(self, running: Iterable[int], position: int) -> Iterator[Fetch]:
        """Yield the copies to start while layers run, the most urgent first.

        Each is planned when it is asked for, so that a copy that fails leaves no plan that nobody carried out.

        Args:
            running: the layer that runs now, and those that it runs in: their weights must stay.
            position: its place in the trace, or -1 when it was not expected.
        """
        if position < 0 or self.held.keys() >= self._positions.keys():
            return
        first = bisect_right(self._to_copy, position)
        wanted: set[int] = {*running, *self._staying}
        for following in range(first, len(self._to_copy)):
            layer = self._trace[self._to_copy[following]]
            wanted.add(layer)
            if layer in self.held:
                continue
            free = [other for other in self.held if other not in wanted]
            free.sort(key=lambda other: -self._next_use(other, position))
            fetch = self._place(layer, free, self._size_at(following + 1))
            if fetch is None and following == first:
                fetch = self._place(layer, free)
            if fetch is None:
                return
            yield fetch

    def _choose_staying(self) -> list[int]:
        """Return the layers to keep: as many as leave room for the largest two neighbours of the others.

        How many that are is searched by halves. With layers of unequal size a few more may fit where one more
        does not, because other ones are chosen: some counts beyond are tried as well.
        """
        repeated = [layer for layer, places in self._positions.items() if len(places) > 1]
        fits, too_many = 0, len(repeated) + 1
        while too_many - fits > 1:
            count = (fits + too_many) // 2
            if self._fit(_spread(repeated, count)):
                fits = count
            else:
                too_many = count
        beyond = range(min(fits + TRIES, len(repeated)), fits, -1)
        count = next((more for more in beyond if self._fit(_spread(repeated, more))), fits)
        return sorted(_spread(repeated, count))

    def _fit(self, staying: Set[int]) -> bool:
        """Tell whether the others can stream beside these."""
        room = self.capacity - sum(self.sizes[layer] for layer in staying)
        if room < 0:
            return False
        return largest_neighbours([self.sizes[o] for o in self._positions if o not in staying]) <= room

    def _next_use(self, layer: int, position: int) -> int:
        positions = self._positions.get(layer, [])
        after = bisect_right(positions, position)
        return positions[after] if after < len(positions) else NEVER

    def _size_at(self, place: int) -> int:
        """Return the bytes of the layer at a place among those to copy; 0 behind the last one."""
        return self.sizes[self._trace[self._to_copy[place]]] if place < len(self._to_copy) else 0

    def _place(self, layer: int, may_go: Sequence[int], then: int = 0) -> Fetch | None:
        """Place a layer, letting as few of the others go as need be, the first ones first.

        Beside it there must be room in one piece for the layer that runs after it, of `then` bytes.
        """
        kept = dict(self.held)
        for count in range(len(may_go) + 1):
            if count:
                del kept[may_go[count - 1]]
            region = self._staying.get(layer) or self._hole(kept.values(), self.sizes[layer], then)
            if region is not None and not any(region.overlaps(other) for other in kept.values()):
                evicted = tuple(other for other in may_go[:count] if self.held[other].overlaps(region))
                for other in evicted:
                    del self.held[other]
                self.held[layer] = region
                return Fetch(layer, region, evicted)
        return None

    def _hole(self, kept: Iterable[Region], size: int, then: int) -> Region | None:
        """Return a place at an end of the tightest hole that will do."""
        places: list[tuple[int, Region]] = []
        start = self._stream_from
        for region in (*sorted(kept), Region(self._end, self._end)):
            room = region.start - start
            if room >= size:
                places.append((room, Region(start, start + size)))
                places.append((room, Region(region.start - size, region.start)))
            start = max(start, region.end)
        fit = [(r, p) for r, p in places if max(p.start - self._stream_from, self._end - p.end) >= then]
        return min(fit, key=lambda place: place[0])[1] if fit else None


def largest_neighbours(sizes: Sequence[int]) -> int:
    """Return the bytes that layers need to stream in order, each copied while the one before it runs.

    Those that need no copy do not count: two others on both sides of one are neighbours.
    """
    copied = [size for size in sizes if size]
    return max(map(add, copied, copied[1:]), default=max(copied, default=0))


def _spread(layers: Sequence[int], count: int) -> set[int]:
    """Return so many of the layers, spread evenly."""
    return {layers[i * len(layers) // count] for i in range(count)}
