"""How fast bytes come from host memory to the device, and what a copy costs beside its bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from .stopwatch import Stopwatch

_BATCH = 16 << 20
"""Small copies are timed together, at least so many bytes of them."""

Step = Callable[[], None]
"""Called between measurements; what it raises ends them, and nothing is left of them."""


@dataclass(frozen=True)
class Link:
    """Copies of some sizes: bytes → seconds of one copy."""

    seconds: Mapping[int, float]

    @property
    def speed(self) -> float:
        """Bytes per second of the largest copy."""
        largest = max(self.seconds)
        return largest / self.seconds[largest]

    @property
    def latency(self) -> float:
        """Seconds that a copy takes beside its bytes, as the smallest one shows it."""
        smallest = min(self.seconds)
        return max(0.0, self.seconds[smallest] - smallest / self.speed)


def copy_to_device(block: torch.Tensor, there: torch.Tensor, small: int, step: Step) -> Link:
    """Time copies of a block of bytes to a device, whole and in parts.

    Args:
        block: host memory that has been written, pinned or not.
        there: as many bytes on the device.
        small: the smallest part in bytes; those in between are each four times the one before.
        step: called between measurements.
    """
    watch, found = Stopwatch(there.device), {}
    for size in _sizes(small, block.nbytes):
        count = max(1, min(_BATCH, block.nbytes) // size)
        starts = [number * size for number in range(count)]

        def copy(starts: list[int] = starts, size: int = size) -> None:
            for start in starts:
                there[start : start + size].copy_(block[start : start + size], non_blocking=True)

        step()
        watch.seconds(copy)
        found[size] = watch.best(copy) / count
    return Link(found)


def memory_speed(block: torch.Tensor, step: Step) -> float:
    """Return the bytes per second at which host memory is copied to host memory."""
    step()
    there = torch.empty_like(block)
    there.copy_(block)
    return block.nbytes / Stopwatch(torch.device("cpu")).best(lambda: there.copy_(block))


def _sizes(small: int, large: int) -> list[int]:
    sizes = [large]
    size = small
    while size < large:
        sizes.append(size)
        size *= 4
    return sorted(sizes)
