"""Masters packed for transfer: the weights of a layer in one block, in the order they take in a slot.

The same Parameter objects view the block afterwards, so there is one copy of every weight, and a write into a
weight is a write into the block: nothing can go stale. A layer is then one copy instead of one per weight,
which is what an encoder of many small weights needs (CLIP-L, simulated: 11.4 → 7.0 ms), and a pinned block's
copy does not hold the host. A weight's own memory goes when it is packed, so packing takes one layer more than there
was, for as long as it takes.
"""

from __future__ import annotations

import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import nn

from .resting import address, view
from .slots import layout_of, packed_bytes, views_into


class PackedWeights:
    """The packed layers of one model.

    Args:
        pin: makes a block of that many pinned bytes, or returns None when it may not or cannot.
        unpin: called with each block that is not used any more, at the latest when this object goes.
    """

    def __init__(
        self,
        pin: Callable[[int], torch.Tensor | None],
        unpin: Callable[[torch.Tensor], object] = lambda block: None,
    ) -> None:
        self._pin = pin
        self._unpin = unpin
        self._blocks: dict[tuple[int, ...], torch.Tensor] = {}  # addresses of a layer's weights → their block
        self._pinned: dict[int, torch.Tensor] = {}  # address → block
        self._lock = threading.RLock()  # whoever dies last gives the blocks back, in any thread
        # The finalizer keeps the blocks alive until it has run, not this object.
        weakref.finalize(self, _unpin_all, self._pinned, unpin).atexit = False

    @property
    def pinned_bytes(self) -> int:
        """Pinned memory in use."""
        return sum(block.nbytes for block in self._pinned.values())

    @property
    def packed_bytes(self) -> int:
        """Memory of all blocks, pinned and ordinary ones."""
        return sum(block.nbytes for block in self._blocks.values())

    @property
    def addresses(self) -> frozenset[int]:
        """The addresses of all weights that view a block."""
        return frozenset(address for key in self._blocks for address in key)

    def is_pinned(self, block: torch.Tensor) -> bool:
        """Tell whether a copy from a block returns before it is done."""
        return block.data_ptr() in self._pinned

    def pack(self, masters: Sequence[nn.Parameter], *, pinned: bool = True) -> None:
        """Let the weights of one layer view one block.

        Args:
            masters: the weights, in the order in which they are copied.
            pinned: whether the block shall be a pinned one; where none is to be had, it is an ordinary one, until
                there is one when they are packed again.
        """
        if not masters:
            return
        with self._lock:
            before, old = self.block(masters), _addresses(masters)
            if before is not None and self.is_pinned(before) == pinned:
                return
            fresh = self._pin(packed_bytes(masters)) if pinned else None
            if before is not None and fresh is None and pinned:
                return
            self._move(masters, fresh)
            if before is not None:
                self._drop(old)

    def _move(self, masters: Sequence[nn.Parameter], pinned: torch.Tensor | None) -> None:
        size = packed_bytes(masters)
        block = pinned if pinned is not None else torch.empty(size, dtype=torch.uint8)
        for master, place in zip(masters, views_into(block, 0, layout_of(masters)), strict=True):
            with torch.inference_mode():
                place.copy_(master)
            view(master, place)
        self._blocks[_addresses(masters)] = block
        if pinned is not None:
            self._pinned[block.data_ptr()] = block

    def block(self, masters: Sequence[nn.Parameter]) -> torch.Tensor | None:
        """Return the block that these weights view, all of them and in this order, or None."""
        return self._blocks.get(_addresses(masters))

    def forget(self, live: Iterable[nn.Parameter]) -> None:
        """Drop blocks that no live weight views any more: ComfyUI moved or replaced the weights."""
        addresses = set(map(address, live))
        with self._lock:
            for key in [key for key in self._blocks if not addresses.intersection(key)]:
                self._drop(key)

    def unpin(self) -> None:
        """Give all pins back; the blocks stay, as ordinary memory. Nothing may copy from them now."""
        with self._lock:
            while self._pinned:
                _, block = self._pinned.popitem()
                self._unpin(block)

    def release(self, live: Iterable[nn.Parameter]) -> None:
        """Give weights memory of their own again, the same Parameter objects, and let all blocks go.

        Nothing may copy from them now.
        """
        viewing: defaultdict[int, list[nn.Parameter]] = defaultdict(list)
        for parameter in live:
            viewing[address(parameter)].append(parameter)
        with self._lock:
            for key in list(self._blocks):
                for place in key:
                    for parameter in viewing.get(place, ()):
                        view(parameter, parameter.clone())
                self._drop(key)  # one at a time: never more than one layer is in memory twice

    def _drop(self, key: tuple[int, ...]) -> None:
        block = self._blocks.pop(key)
        if self._pinned.pop(block.data_ptr(), None) is not None:
            self._unpin(block)


def _unpin_all(blocks: dict[int, torch.Tensor], unpin: Callable[[torch.Tensor], object]) -> None:
    for block in blocks.values():
        unpin(block)


def _addresses(masters: Sequence[nn.Parameter]) -> tuple[int, ...]:
    return tuple(map(address, masters))
