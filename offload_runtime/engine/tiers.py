"""Host tiers: where a layer's master lives, and what is done there around a transfer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import torch

from .mapped import MappedWeights
from .packed import PackedWeights
from .resting import read_ahead


class Tier(Protocol):
    """What the streamer asks of the place that holds the masters."""

    name: str
    overlaps: bool
    """Whether the next layer can be copied ahead of its turn, into a second slot."""

    def begin_use(self, live: Iterable[torch.Tensor]) -> None:
        """Hear that the component with these weights is loaded, before anything is planned."""

    def holds(self, tensor: torch.Tensor) -> bool:
        """Tell whether the tensor's master lives here, so that it must be copied into a slot to be used."""

    def pack(self, masters: Sequence[torch.Tensor]) -> None:
        """Bring the masters of one layer into the form that copies fastest; called before each use."""

    def packed(self, masters: Sequence[torch.Tensor]) -> torch.Tensor | None:
        """Return the masters as one block of bytes in slot layout, or None when they are not."""

    def blocks_the_host(self, block: torch.Tensor | None) -> bool:
        """Tell whether a copy of these masters returns only when it is done."""

    def expect(self, masters: Sequence[torch.Tensor]) -> None:
        """Hear that these masters are read soon."""

    def finish(self, masters: Sequence[torch.Tensor]) -> None:
        """Hear that these masters have been copied and are not read again soon."""


class MemoryTier:
    """Masters in host memory, for a compute device with memory of its own.

    Args:
        device: the compute device.
        weights: packs each layer into one block, so that it is copied at once.
        pinned: whether it wants the blocks pinned; the other tiers of these weights have a say, too.
    """

    name = "memory"
    overlaps = True

    def __init__(self, device: torch.device, weights: PackedWeights, *, pinned: bool = True) -> None:
        self._device = device
        self._weights = weights
        if pinned:
            weights.want_pinned(self)

    def begin_use(self, live: Iterable[torch.Tensor]) -> None:
        """Nothing to do: the masters are packed when ComfyUI has placed what stays."""

    def holds(self, tensor: torch.Tensor) -> bool:
        """Everything that is not on the compute device yet."""
        return tensor.device != self._device

    def pack(self, masters: Sequence[torch.Tensor]) -> None:
        """Bring them into one block, a pinned one as far as the limit goes."""
        self._weights.pack(masters)

    def packed(self, masters: Sequence[torch.Tensor]) -> torch.Tensor | None:
        """Return their block."""
        return self._weights.block(masters)

    def blocks_the_host(self, block: torch.Tensor | None) -> bool:
        """Unless they are pinned."""
        return block is None or not self._weights.is_pinned(block)

    def expect(self, masters: Sequence[torch.Tensor]) -> None:
        """Nothing to do: memory is always ready."""

    def finish(self, masters: Sequence[torch.Tensor]) -> None:
        """Nothing to do: the masters stay."""


class FileTier:
    """Masters in the safetensors file, for a compute device with memory of its own: copied straight from there.

    Args:
        device: the compute device.
        weights: which weights view their file.
    """

    name = "file"
    overlaps = True

    def __init__(self, device: torch.device, weights: MappedWeights) -> None:
        self._device = device
        self._weights = weights

    def begin_use(self, live: Iterable[torch.Tensor]) -> None:
        """Let weights rest in the file again that somebody has read in the meantime."""
        self._weights.begin_use(live)

    def holds(self, tensor: torch.Tensor) -> bool:
        """Everything that is not on the compute device yet."""
        return tensor.device != self._device

    def pack(self, masters: Sequence[torch.Tensor]) -> None:
        """Nothing to do: packing would bring the file into memory."""

    def packed(self, masters: Sequence[torch.Tensor]) -> torch.Tensor | None:
        """A file's tensors are not in slot layout."""
        return None

    def blocks_the_host(self, block: torch.Tensor | None) -> bool:
        """What is read from a file is not pinned."""
        return True

    def expect(self, masters: Sequence[torch.Tensor]) -> None:
        """Nothing to do: what may be read ahead is copied ahead."""

    def finish(self, masters: Sequence[torch.Tensor]) -> None:
        """Nothing to do: they take no memory but the slot."""


class MappedTier:
    """Masters in the safetensors file, for computing on the CPU: each is read into the slot when it runs."""

    name = "file"
    overlaps = False

    def __init__(self, weights: MappedWeights) -> None:
        self._weights = weights

    def begin_use(self, live: Iterable[torch.Tensor]) -> None:
        """Let weights rest in the file again that somebody has read in the meantime."""
        self._weights.begin_use(live)

    def holds(self, tensor: torch.Tensor) -> bool:
        """Every weight that rests in its file."""
        return self._weights.holds(tensor)

    def pack(self, masters: Sequence[torch.Tensor]) -> None:
        """Nothing to do: the file is as it is."""

    def packed(self, masters: Sequence[torch.Tensor]) -> torch.Tensor | None:
        """A file's tensors are not in slot layout."""
        return None

    def blocks_the_host(self, block: torch.Tensor | None) -> bool:
        """The CPU that copies is the one that computes."""
        return False

    def expect(self, masters: Sequence[torch.Tensor]) -> None:
        """Ask the system to read the file ahead, while the current layer computes."""
        for master in masters:
            read_ahead(master)

    def finish(self, masters: Sequence[torch.Tensor]) -> None:
        """Nothing to do: they take no memory but the slot."""
