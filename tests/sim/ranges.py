"""Who last wrote and who has read each byte range of one piece of memory.

A slot buffer is one storage that many views share, and two streams may rightly work on different parts of
it, so uses are kept per range. A view with gaps counts as the whole span from its first to its last byte.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

from .order import Access, Actor, Clock, RaceFault, ReadBeforeArrival, WriteWhileRead, WriteWhileWritten


class Segment:
    """Bytes from ``low`` up to the next segment that share one history."""

    __slots__ = ("low", "reads", "write")

    def __init__(self, low: int, write: Access | None, reads: dict[Actor, Access]) -> None:
        self.low, self.write, self.reads = low, write, reads


def note_last(into: dict[Actor, Access], uses: Iterable[Access]) -> None:
    """Keep the last use by each actor."""
    for use in uses:
        if use.actor not in into or into[use.actor].number < use.number:
            into[use.actor] = use


class RangeHistory:
    """The uses of ``size`` bytes, as segments that tile the whole.

    Args:
        size: how many bytes.
        former: the last uses by those who had the memory before; nobody may write before they are over.
    """

    __slots__ = ("_segments", "size")

    def __init__(self, size: int, former: dict[Actor, Access] | None = None) -> None:
        self.size = size
        self._segments = [Segment(0, None, dict(former or {}))]

    def check(self, low: int, high: int, writes: bool, clock: Clock) -> tuple[type[RaceFault], Access] | None:
        """The first earlier use of these bytes that ``clock`` does not know to be over, if any."""
        for segment in self._covering(low, high):
            for read in segment.reads.values() if writes else ():
                if not read.known_to(clock):
                    return WriteWhileRead, read
            last = segment.write
            if last is not None and not last.known_to(clock):
                return (WriteWhileWritten if writes else ReadBeforeArrival), last
        return None

    def note(self, low: int, high: int, writes: bool, access: Access) -> None:
        """Record one use of these bytes."""
        if high <= low:
            return
        first, last = self._cut(low), self._cut(high)
        if writes:
            self._segments[first:last] = [Segment(low, access, {})]
            return
        for segment in self._segments[first:last]:
            segment.reads[access.actor] = access

    def unfinished(self, clock: Clock) -> list[Access]:
        """Every recorded use that ``clock`` does not know to be over."""
        pending = []
        for segment in self._segments:
            uses = [*segment.reads.values()]
            if segment.write is not None:
                uses.append(segment.write)
            pending += [use for use in uses if not use.known_to(clock)]
        return pending

    def last_uses(self) -> dict[Actor, Access]:
        """The last recorded use by each actor."""
        last: dict[Actor, Access] = {}
        for segment in self._segments:
            note_last(last, segment.reads.values())
            if segment.write is not None:
                note_last(last, [segment.write])
        return last

    def _covering(self, low: int, high: int) -> Iterator[Segment]:
        index = bisect_right(self._segments, low, key=lambda segment: segment.low) - 1
        while index < len(self._segments) and self._segments[index].low < high:
            yield self._segments[index]
            index += 1

    def _cut(self, at: int) -> int:
        """Make a segment start at ``at``; its index (one past the end when ``at`` is the end)."""
        if at >= self.size:
            return len(self._segments)
        index = bisect_right(self._segments, at, key=lambda segment: segment.low) - 1
        segment = self._segments[index]
        if segment.low == at:
            return index
        self._segments.insert(index + 1, Segment(at, segment.write, dict(segment.reads)))
        return index + 1
