"""How much of a copy hides behind computing that takes as long."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ..lane import Event, Lane
from .link import Step
from .stopwatch import Stopwatch

_TRIED = 8
"""Multiplications that are timed to know how long one takes."""


@dataclass(frozen=True)
class Overlap:
    """Seconds of a copy, of computing, and of both begun together."""

    copy: float
    compute: float
    both: float

    @property
    def share(self) -> float:
        """How much of the shorter one was hidden: 1 is all of it."""
        hidden = self.copy + self.compute - self.both
        return min(1.0, max(0.0, hidden / min(self.copy, self.compute)))


def overlaps(block: torch.Tensor, there: torch.Tensor, side: int, step: Step, *, pinned: bool) -> Overlap:
    """Copy a block as the streamer does, alone and beside multiplications of about the same length.

    Args:
        block: host memory that has been written.
        there: as many bytes on the device.
        side: rows and columns of the matrices.
        step: called between measurements.
        pinned: whether the block is; if not, a thread of its own copies it, as the streamer's does.
    """
    watch, lane = Stopwatch(there.device), Lane(there.device)

    def work() -> None:
        there.copy_(block, non_blocking=True)

    def begin() -> Event:
        return (lane.copy if pinned else lane.copy_in_background)((lane.mark(),), work)

    def copy() -> None:
        lane.wait(begin())

    watch.seconds(copy)
    step()
    alone = watch.best(copy)
    compute = _as_long_as(alone, side, watch)
    step()
    computing = watch.best(compute)

    def both() -> None:
        arrived = begin()
        compute()
        lane.wait(arrived)

    step()
    together = watch.best(both)
    lane.settle()
    return Overlap(alone, computing, together)


def _as_long_as(seconds: float, side: int, watch: Stopwatch) -> Callable[[], None]:
    """Return multiplications that take about so long."""
    # Nothing of the values matters, but that they stay finite.
    matrix = torch.full((side, side), 1 / side, dtype=torch.float16, device=watch.device)

    def multiply(count: int) -> Callable[[], None]:
        def compute() -> None:
            for _ in range(count):
                torch.mm(matrix, matrix)

        return compute

    watch.seconds(multiply(1))
    each = watch.best(multiply(_TRIED)) / _TRIED
    return multiply(max(1, round(seconds / each)))
