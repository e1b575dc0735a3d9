"""Memory that a layer's operations write to in turn: the system need not bring fresh pages for each of them.

A matrix that is converted for one multiplication is of no use after it. Fresh memory for it costs more than the
conversion: the system clears every page. What the first operation of a layer took serves the others, on the thread
that runs the layer, and is given back when the layer is done.
"""

from __future__ import annotations

import math
import threading
from types import TracebackType

import torch


class Scratch(threading.local):
    """Context manager around a layer, reentrant; each thread has memory of its own."""

    def __init__(self) -> None:
        self._depth = 0
        self._memory: torch.Tensor | None = None

    def __enter__(self) -> None:
        self._depth += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._depth -= 1
        if not self._depth:
            self._memory = None

    def tensor(self, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        """Return an uninitialised contiguous CPU tensor, valid until the next one of this thread is asked for."""
        if not self._depth or torch.is_grad_enabled():  # whoever wants gradients keeps what was multiplied by
            return torch.empty(shape, dtype=dtype)
        size = math.prod(shape) * dtype.itemsize
        if self._memory is None or self._memory.numel() < size:
            self._memory = None  # before another one is there
            with torch.inference_mode(False):
                self._memory = torch.empty(size, dtype=torch.uint8)
        return self._memory[:size].view(dtype).view(shape)


scratch = Scratch()
"""That of whatever layer this thread runs."""
