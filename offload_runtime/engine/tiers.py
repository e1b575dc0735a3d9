"""Host tiers: where a layer's master lives, and what is done there around a transfer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import torch

from . import pages
from .mapped import MappedWeights


class HostTier(Protocol):
    """What the streamer asks of the place that holds the masters."""

    name: str

    def holds(self, tensor: torch.Tensor) -> bool:
        """Tell whether the tensor's master lives here, so that it must be copied into a slot to be used."""

    def expect(self, tensors: Iterable[torch.Tensor]) -> None:
        """Hear that these masters are read soon."""

    def finish(self, tensors: Iterable[torch.Tensor]) -> None:
        """Hear that these masters have been copied and are not read again soon."""


class MemoryTier:
    """Masters in ordinary host memory, for a compute device with memory of its own."""

    name = "memory"

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def holds(self, tensor: torch.Tensor) -> bool:
        """Everything that is not on the compute device yet."""
        return tensor.device != self._device

    def expect(self, tensors: Iterable[torch.Tensor]) -> None:
        """Nothing to do: memory is always ready."""

    def finish(self, tensors: Iterable[torch.Tensor]) -> None:
        """Nothing to do: the masters stay."""


class MappedTier:
    """Masters in the safetensors file, for computing on the CPU: pages are read ahead and dropped."""

    name = "file"

    def __init__(self, weights: MappedWeights) -> None:
        self._weights = weights

    def holds(self, tensor: torch.Tensor) -> bool:
        """Every weight that views its file."""
        return self._weights.holds(tensor)

    def expect(self, tensors: Iterable[torch.Tensor]) -> None:
        """Ask the kernel to read the pages ahead, while the current layer computes."""
        for tensor in tensors:
            if self._weights.holds(tensor):
                pages.read_ahead(tensor)

    def finish(self, tensors: Iterable[torch.Tensor]) -> None:
        """Give the pages back: the file still has them."""
        for tensor in tensors:
            pages.page_out(tensor)
