"""Host memory as the card sees it: what is pinned, and who still reads or writes it.

Pinned memory is an ordinary CPU tensor whose storage carries a :class:`PinnedRange`; memory that was
registered in place (``cudaHostRegister``) is known by address. Only pinned memory has a history: copies
from pageable memory end before the host goes on, so they cannot race with the thread that made them.
"""

from __future__ import annotations

from bisect import bisect_right

import torch

from .machine import Machine
from .order import Access, Clock, FreedWhileUsed, RaceFault
from .ranges import RangeHistory
from .site import Site

_ATTRIBUTE = "_sim_pinned"

#: Host copies below this size are not worth a place on the clock.
_SMALL = 64 * 1024


class PinnedRange:
    """Pinned bytes and their history."""

    __slots__ = ("address", "history", "registry", "site", "size")

    def __init__(self, registry: HostMemory, address: int, size: int) -> None:
        self.registry, self.address, self.size = registry, address, size
        self.history = RangeHistory(max(size, 1))
        self.site = Site.here()

    def __str__(self) -> str:
        return f"{self.size} pinned host bytes made at {self.site}"

    def __del__(self) -> None:
        self.registry.pinned -= self.size


def span(tensor: torch.Tensor) -> tuple[int, int]:
    """First byte and end, inside the storage, of what the tensor can reach."""
    if tensor.numel() == 0:
        return 0, 0
    item = tensor.element_size()
    low = tensor.storage_offset() * item
    reach = sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride(), strict=True))
    return low, low + (reach + 1) * item


class HostMemory:
    """Registry of pinned memory."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.pinned = 0
        self.pin_limit: int | None = None
        self._addresses: list[int] = []
        self._registered: dict[int, PinnedRange] = {}

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """Mark the storage of a CPU tensor as pinned.

        Raises:
            RuntimeError: :attr:`pin_limit` does not allow it, as when the driver refuses.
        """
        storage = tensor.untyped_storage()
        if not hasattr(storage, _ATTRIBUTE):
            size = storage.nbytes()
            if self.pin_limit is not None and self.pinned + size > self.pin_limit:
                raise RuntimeError(f"CUDA error: out of memory (pinning {size} bytes of host memory)")
            setattr(storage, _ATTRIBUTE, PinnedRange(self, storage.data_ptr(), size))
            self.pinned += size
        return tensor

    def register(self, address: int, size: int) -> bool:
        """Pin existing memory in place; False when the limit or an overlap forbids it."""
        index = bisect_right(self._addresses, address)
        before = self._registered[self._addresses[index - 1]] if index else None
        overlaps = before is not None and before.address + before.size > address
        overlaps = overlaps or (index < len(self._addresses) and self._addresses[index] < address + size)
        if overlaps or (self.pin_limit is not None and self.pinned + size > self.pin_limit):
            return False
        self._addresses.insert(index, address)
        self._registered[address] = PinnedRange(self, address, size)
        self.pinned += size
        return True

    def unregister(self, address: int) -> bool:
        """Undo :meth:`register`; False when the address is not registered.

        Raises:
            FreedWhileUsed: a copy of these bytes may still be under way.
        """
        region = self._registered.get(address)
        if region is None:
            return False
        for use in region.history.unfinished(self._machine.host.clock):
            raise FreedWhileUsed(
                "Host memory is unpinned while in use", use, f"unregistering at {Site.here()}", str(region)
            )
        del self._registered[address]
        self._addresses.remove(address)
        return True

    def unregister_within(self, low: int, high: int) -> None:
        """Undo every registration that starts in a range of addresses."""
        for address in [a for a in self._addresses if low <= a < high]:
            self.unregister(address)

    def find(self, tensor: torch.Tensor) -> tuple[PinnedRange, int, int] | None:
        """The pinned memory a CPU tensor lies in, with its byte range there; None for pageable memory."""
        storage = tensor.untyped_storage()
        low, high = span(tensor)
        region: PinnedRange | None = getattr(storage, _ATTRIBUTE, None)
        if region is not None:
            return region, low, high
        if not self._addresses:
            return None
        address = storage.data_ptr() + low
        index = bisect_right(self._addresses, address)
        if not index:
            return None
        region = self._registered[self._addresses[index - 1]]
        start = address - region.address
        if start + (high - low) > region.size:
            return None
        return region, start, start + (high - low)

    def use(self, tensor: torch.Tensor, writes: bool, access: Access, clock: Clock) -> None:
        """Check and record one use of host memory.

        Raises:
            RaceFault: an earlier use is not known to be over.
        """
        if (found := self.find(tensor)) is None:
            return
        region, low, high = found
        check_and_note(region.history, low, high, writes, access, clock, region)

    def copied(self, target: torch.Tensor, source: torch.Tensor | None, name: str) -> None:
        """The calling thread writes ``target`` (from ``source``): charge its time and check both."""
        moved = target.numel() * target.element_size()
        machine = self._machine
        if self.find(target) is not None or (source is not None and self.find(source) is not None):
            access = machine.host_access(name)
            if source is not None:
                self.use(source, False, access, machine.host.clock)
            self.use(target, True, access, machine.host.clock)
        if moved >= _SMALL:
            machine.spend(machine.profile.memcpy_time(moved), name, moved)


_PROBLEMS = {
    "ReadBeforeArrival": "Read before arrival",
    "WriteWhileRead": "Overwritten while still read",
    "WriteWhileWritten": "Overwritten while still being written",
}


def check_and_note(
    history: RangeHistory, low: int, high: int, writes: bool, access: Access, clock: Clock, memory: object
) -> None:
    """Raise the fault an earlier use reveals, else record this use."""
    if high <= low:
        return
    if (found := history.check(low, high, writes, clock)) is not None:
        kind, earlier = found
        fault: RaceFault = kind(_PROBLEMS[kind.__name__], earlier, access, f"bytes {low}..{high} of {memory}")
        raise fault
    history.note(low, high, writes, access)
