"""The trace: in which order layers ran in the last use, which predicts the next use.

Reverse decoders, skipped or repeated blocks, recursion, tiles and interleaved stacks are all just orders.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

LONGEST = 1 << 16
"""Layer runs remembered of one use; a longer one repeats itself, so its beginning predicts the rest."""


class Trace:
    """Records what runs by names that mean the same to everybody who runs the model."""

    def __init__(self) -> None:
        self._last: list[Hashable] = []
        self._now: list[Hashable] = []
        self._broken = False  # whether an error ended what has run so far

    def begin_use(self) -> None:
        """Take what was recorded as the last use."""
        cut_short = self._broken and (not self._last or len(self._now) < len(self._last))
        if self._now and not cut_short:
            self._last = self._now
        self._now, self._broken = [], False

    def record(self, layer: Hashable) -> None:
        """Note that a layer runs now."""
        if len(self._now) < LONGEST:
            self._now.append(layer)
        self._broken = False

    def break_off(self) -> None:
        """Note that an error ended the layer that runs: unless another one follows, the use was not a whole one."""
        self._broken = True

    @property
    def last(self) -> Sequence[Hashable]:
        """What ran in the last use, in order; empty before the first one."""
        return self._last

    @property
    def passes(self) -> int | None:
        """How often the layer that ran most ran in the last use; None before the first one."""
        return max(Counter(self._now or self._last).values(), default=None)
