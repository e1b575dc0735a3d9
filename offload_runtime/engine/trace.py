"""The trace: in which order layers ran in the last use, which predicts the next use.

Reverse decoders, skipped or repeated blocks, recursion, tiles and interleaved stacks are all just orders. A
wrong prediction costs one wait, and the trace falls in with what really runs.
"""

from __future__ import annotations

from collections.abc import Sequence

LONGEST = 1 << 16
"""Layer runs remembered of one use; a longer one repeats itself, so its beginning predicts the rest."""


class Trace:
    """Records layer indices and predicts the next ones.

    Args:
        expected: the order to predict before anything has run, such as registration order.
    """

    def __init__(self, expected: Sequence[int]) -> None:
        self._last = list(expected)
        self._now: list[int] = []
        self._cursor = -1  # where in the last use the current one is

    def begin_use(self) -> None:
        """Take what was recorded as the prediction from here on."""
        if self._now:
            self._last = self._now
        self._now, self._cursor = [], -1

    def record(self, layer: int) -> int:
        """Note that a layer runs now; return its place in the prediction, or -1 when it has none."""
        if len(self._now) < LONGEST:
            self._now.append(layer)
        self._cursor = self._find(layer)
        return self._cursor

    @property
    def expected(self) -> Sequence[int]:
        """The order that is predicted for this use."""
        return self._last

    def _find(self, layer: int) -> int:
        """Return the nearest place of a layer in the last use, looking ahead first; -1 when it has none."""
        try:
            return self._last.index(layer, self._cursor + 1)
        except ValueError:
            pass
        try:
            return self._last.index(layer)
        except ValueError:
            return -1
