"""The room that a workflow is given beyond what ComfyUI asks for, after it ran out of memory.

A margin grows with each failure, and is halved when half of it would have been enough for some runs in a row. After
each failure it takes twice as many such runs, so that a workflow whose sizes change does not go back and forth.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

SHARE = 1 / 16
"""The share of the card that is kept free after the first failure, if no more is known to be missing."""

MOST = 1 / 2
"""The largest share of the card."""

CALM = 3
"""So many runs in a row have to do with half of it before a margin is halved, after the first failure."""

PATIENCE = 48
"""The most runs that it takes."""

LEAST = 1 / 64
"""A margin of a smaller share of the card is none."""

SLACK = 1 / 32
"""The share of the card that has to stay free beyond what is needed."""


@dataclass(frozen=True)
class Margin:
    """What is kept free for a workflow. All sizes are bytes.

    Attributes:
        at: when that was decided, in seconds since 1970.
        bytes: how much; 0 once it is not needed any more.
        component: what ran out of memory.
        others: what other programs held of the card then.
        failed_at: when the workflow ran out of memory last.
        failures: how often it has.
        calm: how many runs in a row would have done with half of it.
    """

    at: float
    bytes: int
    component: str
    others: int = 0
    failed_at: float = 0.0
    failures: int = 1
    calm: int = 0

    def counts(self, others: int) -> bool:
        """Tell whether it is needed while other programs hold so many bytes: they may have given back more."""
        return self.bytes > 0 and self.others - others < self.bytes

    def relaxed(self, spare: int, total: int, at: float) -> Margin:
        """Return what is left of it after a run that did not fail.

        Args:
            spare: what was not needed of all that was left beside the weights, the margin included.
            total: the memory of the card.
            at: when.
        """
        if not self.bytes:
            return self
        if spare < self.bytes // 2 + total * SLACK:
            return replace(self, calm=0, at=at) if self.calm else self
        if self.calm + 1 < min(PATIENCE, CALM << (self.failures - 1)):
            return replace(self, calm=self.calm + 1, at=at)
        half = self.bytes // 2 if self.bytes // 2 >= total * LEAST else 0
        return replace(self, bytes=half, calm=0, at=at)


def after_failure(
    before: Margin | None, component: str, missing: int, total: int, others: int, at: float
) -> Margin:
    """Return what to keep free after a workflow ran out of memory.

    Args:
        before: what was kept free, or None if nothing ever was.
        component: what ran out of memory.
        missing: the bytes that could not be had, or 0 for "not known".
        total: the memory of the card.
        others: what other programs held of it.
        at: when.
    """
    had = before.bytes if before is not None else 0
    room = max(2 * had, had + missing, int(total * SHARE))
    failures = before.failures + 1 if before is not None else 1
    return Margin(at, min(room, int(total * MOST)), component, others, at, failures)
