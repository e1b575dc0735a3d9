"""Model address ranges (VBARs): 32 MB pages that are faulted in, pinned, and evicted by priority.

Every range has a place in an order and a watermark. Whoever needs memory takes pages of the ranges in that
order, from the last up, and of each range from its watermark down; the watermark stays where that ended, and
a fault above it fails until the range is prioritised again. A range that faults is in that order itself: once
its own turn comes, its watermark sinks below what it asked for and the fault fails. A fault also fails when
there would be no room left for what is missing at lower addresses of its range, which go first. The limit of a
watermark is a floor: pages below it are nobody's prey until the limits are reset. A fault pins its pages until
`unpin`; pinned pages are passed over, and go when they are unpinned above the watermark.

Written after the behaviour of the native layer of version 0.4.13, and compared with its binary and that of 0.6.0 on
a stand-in for the driver, operation by operation (`tests/sim/aimdo/native`). Different here: no headroom is kept
free, other programs take nothing, and a page that is lost is spoilt, so that stale use shows in the numbers.
"""

from __future__ import annotations

import weakref
from array import array

import torch

from ..memory import Block
from ..order import SimulationFault
from ..runtime import Runtime, active

PAGE = 32 << 20
_ALIGNMENT = 512
_SPOILED = 0xFF

Allocation = tuple["ModelVBAR", int, int]

#: Highest priority first. Weak: the model that owns a range keeps it alive.
_ranges: list[weakref.ref[ModelVBAR]] = []


class ModelVBAR:
    """The address range of one model.

    Args:
        size: bytes of address space; costs nothing until pages are faulted in.
        device: device index.
    """

    def __init__(self, size: int, device: int) -> None:
        self._runtime: Runtime = active()
        self.device = device
        self.max_size = int(size)
        self.offset = 0
        self.block: Block = self._runtime.memory.reserve_addresses(self.max_size)
        self.base_addr = self.block.record.address
        self.inner = torch.empty(self.max_size, dtype=torch.uint8, device=self._runtime.inner_device)
        pages = min(-(-self.max_size // PAGE), self._runtime.memory.cap // PAGE)
        self._resident = [False] * pages
        self._serial = [0] * pages
        self._pins = [0] * pages
        self._watermark = pages
        self._floor = 0
        self._bytes: dict[int, int] = {}
        _ranges.insert(0, weakref.ref(self))
        hooks = self._runtime.memory.pressure
        if _relieve not in hooks:
            hooks.append(_relieve)

    # Allocation and faults ------------------------------------------------------------------------

    def alloc(self, num_bytes: int) -> Allocation:
        """Addresses for ``num_bytes``; no memory yet."""
        self.offset = -(-self.offset // _ALIGNMENT) * _ALIGNMENT
        if self.offset + num_bytes > self.max_size:
            raise MemoryError("VBAR OOM")
        address = self.base_addr + self.offset
        self.offset += num_bytes
        return self, address, num_bytes

    def fault(self, alloc: int, size: int) -> array[int] | None:
        """Make the pages resident and pin them: their signature, or None when there is no room for them."""
        pages = self._pages(alloc, size)
        memory = self._runtime.memory
        _take_pages(memory.reserved - memory.cap)
        if pages.stop > self._watermark:
            return None
        missing = next((page for page in pages if not self._resident[page]), None)
        if missing is not None and not self._make_resident(range(missing, pages.stop)):
            return None
        for page in pages:
            self._pins[page] += 1
        if missing is not None or alloc not in self._bytes:
            self._count(alloc, size)
        signature = array("L", [0] * (size // PAGE + 2))
        for index, page in enumerate(pages):
            signature[index] = self._serial[page]
        return signature

    def unpin(self, alloc: int, size: int) -> None:
        for page in self._pages(alloc, size):
            if page < len(self._pins):
                self._pins[page] = max(0, self._pins[page] - 1)
                if page >= self._watermark:
                    self._evict(page)

    def is_resident(self, alloc: int, size: int) -> bool:
        pages = self._pages(alloc, size)
        return pages.stop <= len(self._resident) and all(self._resident[page] for page in pages)

    def _pages(self, alloc: int, size: int) -> range:
        offset = alloc - self.base_addr
        return range(offset // PAGE, -(-(offset + size) // PAGE))

    def _make_resident(self, pages: range) -> bool:
        memory = self._runtime.memory
        _take_pages_for(self, pages.stop, memory.cap - memory.reserved - len(pages) * PAGE)
        for page in pages:
            if pages.stop > self._watermark:
                return False
            if self._resident[page]:
                continue
            if not memory.commit(PAGE):
                _take_pages(PAGE)
                if pages.stop > self._watermark:
                    return False
                if not memory.commit(PAGE):
                    raise RuntimeError("Fault failed: 2")
            self._resident[page] = True
            self._serial[page] += 1
        return True

    # Priority -------------------------------------------------------------------------------------

    def prioritize(self, malloc_async_clamp: int | None = None) -> None:
        """First in the order, and no watermark."""
        self._move(0)
        self._watermark = len(self._resident)

    def deprioritize(self) -> None:
        """Last in the order. The watermark stays."""
        self._move(len(_ranges))

    def _move(self, position: int) -> None:
        reference = next(r for r in _ranges if r() is self)
        _ranges.remove(reference)
        _ranges.insert(position, reference)

    # Sizes ----------------------------------------------------------------------------------------

    def loaded_size(self) -> int:
        return sum(self._resident) * PAGE

    def get_nr_pages(self) -> int:
        return len(self._resident)

    def get_watermark(self) -> int:
        return self._watermark

    def set_watermark(self, size_bytes: int) -> None:
        """Let pages above this many bytes, rounded up to pages, fail; drop those that are there."""
        watermark = min(len(self._resident), -(-int(size_bytes) // PAGE))
        for page in range(watermark, self._watermark):
            self._evict(page)
        self._watermark = watermark

    def set_watermark_limit(self, size_bytes: int) -> None:
        """Let nobody take the pages below this many bytes, until the limits are reset."""
        self._floor = -(-int(size_bytes) // PAGE)

    def get_residency(self) -> list[int]:
        """Per page: 1 resident, 2 pinned, added up."""
        return [(1 if r else 0) | (2 if p else 0) for r, p in zip(self._resident, self._pins, strict=True)]

    def free_memory(self, size_bytes: float) -> int:
        """Evict from the watermark down until ``size_bytes`` are freed; the bytes that were."""
        wanted = -(-min(int(size_bytes), self.max_size + PAGE) // PAGE)
        freed = 0
        while freed < wanted and self._sinks():
            freed += self._sink()
        return freed * PAGE

    # Eviction -------------------------------------------------------------------------------------

    def _sinks(self) -> bool:
        return self._watermark > self._floor

    def _sink(self) -> bool:
        """Lower the watermark by a page; tell whether that freed one."""
        self._watermark -= 1
        return self._evict(self._watermark)

    def _evict(self, page: int) -> bool:
        if not self._resident[page] or self._pins[page]:
            return False
        self._runtime.machine.wait_for_all()
        self._resident[page] = False
        if not self._runtime.shapes_only:
            with torch.inference_mode():  # as it was made
                self.inner[page * PAGE : min((page + 1) * PAGE, self.offset)].fill_(_SPOILED)
        self._runtime.memory.decommit(PAGE)
        for alloc, size in list(self._bytes.items()):
            if page in self._pages(alloc, size):
                self._runtime.memory.count_weights(-self._bytes.pop(alloc))
        return True

    def _count(self, alloc: int, size: int) -> None:
        self._runtime.memory.count_weights(size - self._bytes.get(alloc, 0))
        self._bytes[alloc] = size

    def __del__(self) -> None:
        if not hasattr(self, "_resident"):
            return
        self._runtime.memory.decommit(self.loaded_size())
        self._runtime.memory.count_weights(-sum(self._bytes.values()))
        _ranges[:] = [r for r in _ranges if r() is not None and r() is not self]


def _lowest_first() -> list[ModelVBAR]:
    return [vbar for reference in reversed(_ranges) if (vbar := reference()) is not None]


def _take_pages(size: int) -> int:
    """Take pages of any range until ``size`` bytes are freed; the bytes that were."""
    freed = 0
    for vbar in _lowest_first():
        while freed < size and vbar._sinks():
            freed += PAGE * vbar._sink()
    return freed


def _take_pages_for(vbar: ModelVBAR, target: int, surplus: int) -> None:
    """Take pages for a fault up to page ``target``, until all that is missing below it would have room.

    Args:
        vbar: the range that faults.
        target: one past its last page.
        surplus: bytes that are free beside the pages of this fault; negative when those do not fit.
    """
    absent = (page for page in range(target) if not vbar._resident[page])
    cursor = next(absent, target)

    def spend() -> None:
        nonlocal cursor, surplus
        while surplus >= PAGE and cursor < min(target, vbar._watermark):
            surplus -= PAGE
            cursor = next(absent, target)

    def wanting() -> bool:
        return surplus < 0 or cursor < min(target, vbar._watermark)

    spend()
    for victim in _lowest_first():
        while wanting() and victim._sinks():
            if victim._sink():
                surplus += PAGE
                spend()


def _relieve(missing: int) -> bool:
    """Torch is short of memory: give it pages."""
    return _take_pages(missing) > 0


def reset() -> None:
    """Forget all ranges (their owners may live on, useless)."""
    _ranges.clear()


def vbar_fault(alloc: Allocation) -> array[int] | None:
    vbar, address, size = alloc
    with vbar._runtime.machine.lock:
        return vbar.fault(address, size)


def vbar_unpin(alloc: Allocation | None) -> None:
    if alloc is not None:
        vbar, address, size = alloc
        vbar.unpin(address, size)


def vbar_signature_compare(a: array[int] | None, b: array[int] | None) -> bool:
    """Whether what was copied under signature ``b`` is still there under ``a``."""
    if a is None or b is None:
        return False
    if len(a) != len(b):
        raise ValueError(f"Signatures of mismatched length {len(a)} != {len(b)}")
    return a == b


def vbars_analyze(device: int | None = None) -> int:
    """Bytes that all ranges hold and could give."""
    return sum(vbar.loaded_size() for reference in _ranges if (vbar := reference()) is not None)


def vbars_reset_watermark_limits() -> None:
    for vbar in _lowest_first():
        vbar._floor = 0


def view_of(owner: ModelVBAR, address: int, size: int) -> torch.Tensor:
    """The carried bytes at an address of the range.

    Raises:
        SimulationFault: a page is not resident; a card would fault.
    """
    if not owner.is_resident(address, size):
        raise SimulationFault(f"{size} bytes of a VBAR are used while their pages are not resident.")
    start = address - owner.base_addr
    return owner.inner[start : start + size]
