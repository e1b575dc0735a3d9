"""Device and host buffers that grow in place, and tensors over them."""

from __future__ import annotations

import mmap
import sys
from typing import Any

import torch

from ..runtime import active
from ..tensor import SimTensor
from .vbar import ModelVBAR, view_of

_CHUNK = 16 << 20

#: ComfyUI asks for arenas of twice a model. Python names the flag from 3.11 on; this is its value on Linux.
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)


class VRAMBuffer:
    """Device memory that grows without moving."""

    def __init__(self, max_size: int, device: int) -> None:
        self._runtime = active()
        self.device, self.max_size = device, int(max_size)
        self._allocated = 0
        self.block = self._runtime.memory.reserve_addresses(self.max_size)
        self.base_addr = self.block.record.address
        self.inner = torch.empty(0, dtype=torch.uint8, device=self._runtime.inner_device)

    def size(self) -> int:
        return self._allocated

    def get(self, size: int, offset: int = 0) -> tuple[VRAMBuffer, int, int]:
        """Bytes at ``offset``, after growing to hold them."""
        required = int(offset) + int(size)
        if required > self._allocated:
            wanted = -(-required // _CHUNK) * _CHUNK
            if not self._runtime.memory.commit_under_pressure(wanted - self._allocated):
                raise RuntimeError(f"VRAM grow failed: {required} bytes")
            self._runtime.memory.count_weights(wanted - self._allocated)
            self._allocated = wanted
            grown = torch.empty(wanted, dtype=torch.uint8, device=self._runtime.inner_device)
            # In place on a card: earlier views stay valid there, and here they keep the old bytes alive.
            grown[: self.inner.numel()] = self.inner
            self.inner = grown
        return self, self.base_addr + int(offset), int(size)

    def __del__(self) -> None:
        if hasattr(self, "inner"):
            self._runtime.memory.decommit(self._allocated)
            self._runtime.memory.count_weights(-self._allocated)


def aimdo_to_tensor(alloc: tuple[Any, int, int], device: torch.device) -> torch.Tensor:
    """A one-dimensional uint8 tensor over device bytes."""
    owner, address, size = alloc
    if isinstance(owner, ModelVBAR):
        inner = view_of(owner, address, size)
    else:
        start = address - owner.base_addr
        inner = owner.inner[start : start + size]
    active().machine.spend(active().profile.light_call_us)
    return SimTensor(inner, owner.block)


class HostBuffer:
    """Host memory that grows in place; only what is used costs anything."""

    def __init__(self, size: int, prewarm: int = 0, max_grow_size: int = 0, mark_cold: bool = True) -> None:
        self._runtime = active()
        self.size = 0
        self.max_size = max(int(size), int(max_grow_size))
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
        self._memory = mmap.mmap(-1, max(self.max_size, 1), flags=flags)
        self._all = torch.frombuffer(self._memory, dtype=torch.uint8)
        self._pins: set[int] = set()
        if size:
            self.extend(size)

    def get_raw_address(self) -> int:
        return self._all.data_ptr()

    def extend(self, size: int, reallocate: bool = False, register: bool = True) -> int:
        """Grow by ``size`` bytes; the address of the new part."""
        if self.size + size > self.max_size:
            raise RuntimeError("HostBuffer.extend failed")
        start = self.size
        self.size += int(size)
        if register:
            self.register(start, size)
        return self.get_raw_address() + start

    def register(self, offset: int, size: int) -> None:
        if not self._runtime.host.register(self.get_raw_address() + offset, size):
            raise RuntimeError("HostBuffer.register failed")

    def unregister(self, offset: int) -> None:
        if not self._runtime.host.unregister(self.get_raw_address() + offset):
            raise RuntimeError("HostBuffer.unregister failed")

    def truncate(self, size: int, do_unregister: bool = True) -> None:
        """Shrink to ``size`` bytes, unpinning what falls away."""
        if do_unregister:
            base = self.get_raw_address()
            self._runtime.host.unregister_within(base + int(size), base + self.size)
        self.size = int(size)

    def read_file_slice(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError(
            "The simulated comfy_aimdo has no file tier: give models their weights in memory."
        )

    def view(self) -> torch.Tensor:
        return self._all[: self.size]

    def __del__(self) -> None:
        if hasattr(self, "_all"):
            base = self.get_raw_address()
            self._runtime.host.unregister_within(base, base + self.max_size)


def hostbuf_to_tensor(hostbuf: HostBuffer) -> torch.Tensor:
    """A one-dimensional uint8 tensor over the host bytes, with a storage object of its own."""
    return torch.frombuffer(hostbuf._memory, dtype=torch.uint8, count=hostbuf.size)
