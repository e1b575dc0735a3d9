"""How device memory is split over components that are streamed, so that the least is copied in a run of the workflow.

A byte that stays saves one copy for each pass, so bytes of what runs more often are worth more. What is all there
needs no window either: it may be worth to complete a small component, and to leave a part of a larger one out.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

_TRIED = 8
"""Components of which every choice that is complete is tried: 2^8 of them."""

_FEW = 4
"""Layers that one component may give up for those of others."""


@dataclass(frozen=True)
class Streamed:
    """A component that is streamed, as far as a split needs it. All sizes are bytes.

    Attributes:
        name: its name.
        window: what streaming takes at a time.
        layers: how many layers it has.
        layer: the size of one.
        passes: how often its layers run in a run of the workflow.
        limit: what it may have; from `whole` on all of it stays.
        whole: what it takes when all of it stays, with no window.
    """

    name: str
    window: int
    layers: int
    layer: int
    passes: int
    limit: int
    whole: int

    @property
    def can_be_whole(self) -> bool:
        """Whether it may have all that it takes."""
        return self.limit >= self.whole

    def staying(self, given: int) -> int:
        """Return how many layers stay when it is given so many bytes."""
        if given >= self.whole:
            return self.layers
        return min(self.layers, max(0, given - self.window) // max(1, self.layer))

    def copied(self, given: int) -> int:
        """Return the bytes that are copied in a run of the workflow when it is given so many bytes."""
        return self.passes * (self.layers - self.staying(given)) * self.layer


def split(room: int, components: Sequence[Streamed]) -> dict[str, int]:
    """Split memory over components.

    Args:
        room: the memory in bytes; each has its window of it, or what is left of the room if that is less.
        components: the components, in the order in which they are served where it makes no difference.

    Returns:
        Name → its share in bytes. Together they are `room` at most.
    """
    given: dict[str, int] = {}
    for one in components:
        given[one.name] = min(one.window, one.limit, room - sum(given.values()))
    wholes = sorted((c for c in components if c.can_be_whole), key=lambda c: (-c.passes, c.whole))[:_TRIED]
    tried = (_with_whole(room, components, given, frozenset(whole)) for whole in _subsets(wholes))
    return min(
        (shares for shares in tried if shares is not None),
        key=lambda shares: sum(c.copied(shares[c.name]) for c in components),
    )


def _subsets(components: Sequence[Streamed]) -> Iterator[tuple[Streamed, ...]]:
    counts = range(len(components) + 1)
    return itertools.chain.from_iterable(itertools.combinations(components, count) for count in counts)


def _with_whole(
    room: int, components: Iterable[Streamed], windows: Mapping[str, int], whole: frozenset[Streamed]
) -> dict[str, int] | None:
    """Return what everybody gets when some are to be whole, or None where those alone take too much."""
    shares = {**windows, **{one.name: one.whole for one in whole}}
    left = room - sum(shares.values())
    if left < 0:
        return None
    parts = sorted((c for c in components if c not in whole), key=lambda c: -c.passes)
    layers = _layers(parts, left)
    for one in parts:
        shares[one.name] += layers[one.name] * one.layer
        left -= layers[one.name] * one.layer
    for one in parts:  # what is less than a layer makes a window wider
        more = min(left, one.limit - shares[one.name])
        shares[one.name] += more
        left -= more
    return shares


def _layers(parts: Sequence[Streamed], room: int) -> dict[str, int]:
    """Return how many layers of each stay: those that run most often, unless others fill the room better."""
    most = {one.name: max(0, one.limit - one.window) // max(1, one.layer) for one in parts}
    best = _filled(parts, room, most)
    while better := next(_better(parts, room, most, best), None):
        best = better
    return best


def _better(
    parts: Sequence[Streamed], room: int, most: Mapping[str, int], now: Mapping[str, int]
) -> Iterator[dict[str, int]]:
    """Yield what saves more, with a few layers less of one of them, and the room that they leave filled anew."""
    for one in parts:
        for fewer in range(1, min(now[one.name], _FEW) + 1):
            other = _filled(parts, room, {**most, one.name: now[one.name] - fewer})
            if _saved(parts, other) > _saved(parts, now):
                yield other


def _filled(parts: Sequence[Streamed], room: int, most: Mapping[str, int]) -> dict[str, int]:
    layers = {}
    for one in parts:
        layers[one.name] = min(most[one.name], room // max(1, one.layer))
        room -= layers[one.name] * one.layer
    return layers


def _saved(parts: Iterable[Streamed], layers: Mapping[str, int]) -> int:
    return sum(one.passes * layers[one.name] * one.layer for one in parts)
