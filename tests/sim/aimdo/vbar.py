"""Model address ranges (VBARs): 32 MB pages that are faulted in, pinned, and evicted by priority.

From the published description: newer ranges and lower addresses have priority; a fault takes pages from
whatever has less; losing a page sets that range's watermark there, and faults above the watermark fail
until the range is prioritised again; an allocation by torch that does not fit takes pages too. A fault pins
its pages until ``unpin``.

Filled in here: the order of victims is lowest-priority range first and, within one, highest page first;
pinned pages are passed over; a fault that cannot get its pages sets its own range's watermark; eviction
waits for the device, and spoils what was on the page, so that stale use shows in the numbers.
"""

from __future__ import annotations

import weakref
from array import array
from itertools import count

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
_serials = count(1)


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
        pages = -(-self.max_size // PAGE)
        self._serial = [0] * pages  # 0: not resident
        self._pins = [0] * pages
        self._watermark = pages
        self._limit = pages
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
        if pages.stop > min(self._watermark, self._limit):
            return None
        absent = [page for page in pages if not self._serial[page]]
        for page in pages:
            self._pins[page] += 1
        if absent and not self._get_room(len(absent) * PAGE, pages.start):
            for page in pages:
                self._pins[page] -= 1
            self._watermark = pages.start
            return None
        for page in absent:
            self._serial[page] = next(_serials)
        if absent or alloc not in self._bytes:
            self._count(alloc, size)
        return array("L", (self._serial[page] for page in pages))

    def unpin(self, alloc: int, size: int) -> None:
        for page in self._pages(alloc, size):
            self._pins[page] = max(0, self._pins[page] - 1)

    def is_resident(self, alloc: int, size: int) -> bool:
        return all(self._serial[page] for page in self._pages(alloc, size))

    def _pages(self, alloc: int, size: int) -> range:
        offset = alloc - self.base_addr
        return range(offset // PAGE, -(-(offset + size) // PAGE))

    def _get_room(self, size: int, first_page: int) -> bool:
        """Commit ``size`` bytes, taking them from pages of lower priority where needed."""
        memory = self._runtime.memory
        while not memory.commit(size):
            if not _evict_one(below=(self, first_page)):
                return False
        return True

    # Priority -------------------------------------------------------------------------------------

    def prioritize(self, malloc_async_clamp: int | None = None) -> None:
        """First in line, and no watermark."""
        self._move(0)
        self._watermark = len(self._serial)

    def deprioritize(self) -> None:
        """Last in line: may use what is free, evicts nothing of others."""
        self._move(len(_ranges))

    def _move(self, position: int) -> None:
        reference = next(r for r in _ranges if r() is self)
        _ranges.remove(reference)
        _ranges.insert(position, reference)

    # Sizes ----------------------------------------------------------------------------------------

    def loaded_size(self) -> int:
        return sum(PAGE for serial in self._serial if serial)

    def get_nr_pages(self) -> int:
        return len(self._serial)

    def get_watermark(self) -> int:
        return min(self._watermark, self._limit)

    def set_watermark(self, size_bytes: int) -> None:
        """Let pages above this many bytes fail until prioritised again; drop those that are there."""
        self._watermark = min(len(self._serial), size_bytes // PAGE)
        self._drop_above(self._watermark)

    def set_watermark_limit(self, size_bytes: int) -> None:
        """The same, until the limits are reset at the end of a node."""
        self._limit = min(len(self._serial), size_bytes // PAGE)
        self._drop_above(self._limit)

    def get_residency(self) -> list[int]:
        """Per page: 1 resident, 2 pinned, added up."""
        return [(1 if s else 0) | (2 if p else 0) for s, p in zip(self._serial, self._pins, strict=True)]

    def free_memory(self, size_bytes: float) -> int:
        """Evict from the highest page down until ``size_bytes`` are freed; the bytes that were."""
        freed = 0
        for page in reversed(range(len(self._serial))):
            if freed >= size_bytes:
                break
            if self._serial[page] and not self._pins[page]:
                self._evict(page)
                freed += PAGE
        return freed

    # Eviction -------------------------------------------------------------------------------------

    def _drop_above(self, limit: int) -> None:
        for page in range(limit, len(self._serial)):
            if self._serial[page] and not self._pins[page]:
                self._evict(page)

    def _evict(self, page: int) -> None:
        self._runtime.machine.wait_for_all()
        self._serial[page] = 0
        self._watermark = min(self._watermark, page)
        if not self._runtime.shapes_only:
            self.inner[page * PAGE : min((page + 1) * PAGE, self.offset)].fill_(_SPOILED)
        self._runtime.memory.decommit(PAGE)
        for alloc, size in list(self._bytes.items()):
            if page in self._pages(alloc, size):
                self._runtime.memory.count_weights(-self._bytes.pop(alloc))

    def _count(self, alloc: int, size: int) -> None:
        self._runtime.memory.count_weights(size - self._bytes.get(alloc, 0))
        self._bytes[alloc] = size

    def __del__(self) -> None:
        if not hasattr(self, "_serial"):
            return
        self._runtime.memory.decommit(self.loaded_size())
        self._runtime.memory.count_weights(-sum(self._bytes.values()))
        _ranges[:] = [r for r in _ranges if r() is not None and r() is not self]


def _evict_one(below: tuple[ModelVBAR, int] | None) -> bool:
    """Evict the unpinned page of least priority; only one of less priority than ``below``, when given."""
    for reference in reversed(_ranges):
        candidate = reference()
        if candidate is None:
            continue
        floor = below[1] if below is not None and candidate is below[0] else -1
        for page in reversed(range(floor + 1, len(candidate._serial))):
            if candidate._serial[page] and not candidate._pins[page]:
                candidate._evict(page)
                return True
        if below is not None and candidate is below[0]:
            return False
    return False


def _relieve(missing: int) -> bool:
    """Torch is short of memory: give it pages."""
    freed = 0
    while freed < missing and _evict_one(below=None):
        freed += PAGE
    return freed > 0


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
    for reference in _ranges:
        if (vbar := reference()) is not None:
            vbar._limit = len(vbar._serial)


def view_of(owner: ModelVBAR, address: int, size: int) -> torch.Tensor:
    """The carried bytes at an address of the range.

    Raises:
        SimulationFault: a page is not resident; a card would fault.
    """
    if not owner.is_resident(address, size):
        raise SimulationFault(f"{size} bytes of a VBAR are used while their pages are not resident.")
    start = address - owner.base_addr
    return owner.inner[start : start + size]
