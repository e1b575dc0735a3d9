"""Masters packed for transfer: the weights of a layer in one block, in the order they take in a slot.

The same Parameter objects view the block afterwards, so there is one copy of every weight, and a write into a
weight is a write into the block: nothing can go stale. A layer is then one copy instead of one per weight,
which is what an encoder of many small weights needs (CLIP-L, simulated: 11.4 → 7.0 ms), and a pinned block's
copy does not hold the host. A weight's own memory goes when it is packed, so packing takes one layer more than there
was, for as long as it takes. A block is pinned and unpinned where it is: that moves nothing, and takes nothing.
"""

from __future__ import annotations

import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import nn

from .parts import bytes_as_stored, distinct_parts
from .resting import address, view
from .slots import layout_of, packed_bytes, views_into


class PackedWeights:
    """The packed layers of one model.

    Args:
        pin: pins a block where it is, or returns False when it may not or cannot.
        unpin: called with each block that shall be pinned no more, at the latest when this object goes.
    """

    def __init__(
        self,
        pin: Callable[[torch.Tensor], bool],
        unpin: Callable[[torch.Tensor], object] = lambda block: None,
    ) -> None:
        self._pin = pin
        self._unpin = unpin
        self._blocks: dict[tuple[int, ...], torch.Tensor] = {}  # addresses of a layer's weights → their block
        self._tenants: dict[tuple[int, ...], list[weakref.ref[torch.Tensor]]] = {}  # whose place each one is
        self._pinned: dict[int, torch.Tensor] = {}  # address → block
        self._wanting: weakref.WeakSet[object] = weakref.WeakSet()  # who wants the blocks pinned
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

    def want_pinned(self, user: object) -> None:
        """Hear that somebody wants the blocks pinned, for as long as he lives."""
        self._wanting.add(user)

    def pack(self, masters: Sequence[torch.Tensor]) -> None:
        """Let the weights of one layer view one block, a pinned one if anybody wants that and there is room.

        A pin that was refused is asked for again each time, and one that nobody wants any more is given back.
        Nothing may copy from the weights now.

        Args:
            masters: the weights, part by part, in the order in which they are copied.
        """
        if not masters:
            return
        with self._lock:
            block = self.block(masters)
            if block is None:
                self._return(masters)
                block = self.block(masters)
            if block is None:
                block = self._move(masters)
            wanted = bool(list(self._wanting))
            if wanted and not self.is_pinned(block) and self._pin(block):
                self._pinned[block.data_ptr()] = block
            elif not wanted and self._pinned.pop(block.data_ptr(), None) is not None:
                self._unpin(block)

    def _move(self, masters: Sequence[torch.Tensor]) -> torch.Tensor:
        with torch.inference_mode(False):
            block = torch.empty(packed_bytes(masters), dtype=torch.uint8)
        for master, place in zip(masters, views_into(block, 0, layout_of(masters)), strict=True):
            with torch.inference_mode():
                place.copy_(bytes_as_stored(master))
            view(master, place)
        key = _addresses(masters)
        self._blocks[key], self._tenants[key] = block, list(map(weakref.ref, masters))
        return block

    def _return(self, masters: Sequence[torch.Tensor]) -> None:
        """Let parts go back to their places that somebody has copied, and that are the last of their kind.

        When ComfyUI moves a quantised model, it makes its weights anew, and copies of them what is small.
        """
        now = _addresses(masters)
        left = set(now)
        key = next((key for key in self._blocks if not left.isdisjoint(key)), now)
        if key == now or len(key) != len(now):
            return
        block, tenants = self._blocks[key], self._tenants[key]
        if packed_bytes(masters) != block.nbytes:
            return
        for at, (master, place) in enumerate(
            zip(masters, views_into(block, 0, layout_of(masters)), strict=True)
        ):
            gone = tenants[at]() is None and address(master) != address(place) == key[at]
            if gone and torch.equal(_flat(bytes_as_stored(master)), _flat(place)):
                view(master, place)
                tenants[at] = weakref.ref(master)

    def block(self, masters: Sequence[torch.Tensor]) -> torch.Tensor | None:
        """Return the block that these weights view, all of them and in this order, or None."""
        return self._blocks.get(_addresses(masters))

    def forget(self, live: Iterable[nn.Parameter]) -> None:
        """Drop blocks that no live weight views any more: ComfyUI moved or replaced the weights."""
        addresses = set(map(address, distinct_parts(live)))
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
        viewing: defaultdict[int, list[torch.Tensor]] = defaultdict(list)
        for part in distinct_parts(live):
            viewing[address(part)].append(part)
        with self._lock:
            for key in list(self._blocks):
                for place in key:
                    for part in viewing.get(place, ()):
                        view(part, bytes_as_stored(part).clone())
                self._drop(key)  # one at a time: never more than one layer is in memory twice

    def _drop(self, key: tuple[int, ...]) -> None:
        block = self._blocks.pop(key)
        del self._tenants[key]
        if self._pinned.pop(block.data_ptr(), None) is not None:
            self._unpin(block)


def _flat(dense: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a dense tensor, as they follow each other in memory."""
    return dense.as_strided((dense.numel(),), (1,)).view(torch.uint8)


def _unpin_all(blocks: dict[int, torch.Tensor], unpin: Callable[[torch.Tensor], object]) -> None:
    for block in blocks.values():
        unpin(block)


def _addresses(masters: Sequence[torch.Tensor]) -> tuple[int, ...]:
    return tuple(map(address, masters))
