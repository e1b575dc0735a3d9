"""The trace: in which order layers ran in the last use, which predicts the next use.

Reverse decoders, skipped or repeated blocks, recursion, tiles and interleaved stacks are all just orders. A
wrong prediction costs one wait, and the trace falls in with what really runs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

LONGEST = 1 << 16
"""Layer runs remembered of one use; a longer one repeats itself, so its beginning predicts the rest."""


class Trace:
    """Records layer indices and predicts the next ones."""

    def __init__(self) -> None:
        self._last: list[int] = []
        self._now: list[int] = []
        self._used = False  # whether the last use was one, and not the order to begin with
        self._places: dict[int, list[int]] = {}  # layer → where it ran in the last use
        self._cursor = -1  # where in the last use the current one is
        self._broken = False  # whether an error ended what has run so far

    def begin_use(self, otherwise: Iterable[int]) -> None:
        """Take what was recorded as the prediction from here on.

        Args:
            otherwise: the order to predict when nothing has run yet, such as registration order.
        """
        cut_short = self._broken and len(self._now) < len(self._last)
        if self._now and not cut_short:
            self._last, self._used = self._now, True
        elif not self._used:
            self._last = list(otherwise)
        self._now, self._cursor, self._broken = [], -1, False
        places: defaultdict[int, list[int]] = defaultdict(list)
        for place, layer in enumerate(self._last):
            places[layer].append(place)
        self._places = dict(places)

    def record(self, layer: int) -> int:
        """Note that a layer runs now; return its place in the prediction, or -1 when it has none."""
        if len(self._now) < LONGEST:
            self._now.append(layer)
        self._broken = False
        self._cursor = self._find(layer)
        return self._cursor

    def break_off(self) -> None:
        """Note that an error ended the layer that runs: unless another one follows, the use was not a whole one."""
        self._broken = True

    @property
    def passes(self) -> int | None:
        """How often the layer that ran most ran in the last use; None before the first one."""
        ran = self._now or (self._last if self._used else [])
        return max(Counter(ran).values(), default=None)

    @property
    def expected(self) -> Sequence[int]:
        """The order that is predicted for this use."""
        return self._last

    def _find(self, layer: int) -> int:
        """Return the nearest place of a layer in the last use, looking ahead first; -1 when it has none."""
        places = self._places.get(layer)
        if places is None:
            return -1
        ahead = bisect_left(places, self._cursor + 1)
        return places[ahead if ahead < len(places) else 0]
