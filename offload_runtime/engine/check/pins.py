"""Memory that is pinned for as long as something is measured with it, and not a moment longer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch


class Pins(NamedTuple):
    """How memory is pinned where it is.

    Attributes:
        pin: pins a block, or returns False when it may not or cannot.
        unpin: undoes that.
    """

    pin: Callable[[torch.Tensor], bool]
    unpin: Callable[[torch.Tensor], object] = lambda block: None


def cuda_pins() -> Pins:
    """Return torch's own way for NVIDIA and AMD cards, with no limit."""
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]

    def pin(block: torch.Tensor) -> bool:
        return int(runtime.cudaHostRegister(block.data_ptr(), block.nbytes, 0)) == 0

    def unpin(block: torch.Tensor) -> None:
        runtime.cudaHostUnregister(block.data_ptr())

    return Pins(pin, unpin)


@contextmanager
def pinned(block: torch.Tensor, device: torch.device, pins: Pins) -> Iterator[bool]:
    """Let a block be pinned while inside; yields whether it is."""
    done = pins.pin(block)
    try:
        yield done
    finally:
        if done:
            torch.get_device_module(device).synchronize(device)  # a copy may still read it
            pins.unpin(block)


@contextmanager
def pinned_blocks(device: torch.device, pins: Pins, *sizes: int) -> Iterator[list[torch.Tensor]]:
    """Lend pinned blocks of some sizes in bytes.

    Raises:
        MemoryError: one of them cannot be pinned.
    """
    blocks: list[torch.Tensor] = []
    with torch.inference_mode(False):
        made = [torch.ones(size, dtype=torch.uint8) for size in sizes]
    try:
        for block in made:
            if not pins.pin(block):
                raise MemoryError
            blocks.append(block)
        yield blocks
    finally:
        torch.get_device_module(device).synchronize(device)
        for block in blocks:
            pins.unpin(block)
