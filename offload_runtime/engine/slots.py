"""The slots: one preallocated buffer on the device that holds the running layer and those that come next.

Layers of unequal size share it by bytes: it is as large as the largest pair of neighbours, not twice the largest
layer. Addresses repeat from use to use, and layers with the same layout share the views, which are made once:
the steady state constructs no tensor and allocates nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from .resting import Resting

ALIGNMENT = 256
"""Every tensor in a slot starts at a multiple of this many bytes: enough for any dtype and any kernel."""

Layout = tuple[tuple[torch.dtype, torch.Size, tuple[int, ...]], ...]


def why_unmovable(tensor: torch.Tensor) -> str | None:
    """Return why a parameter cannot be copied into a slot view, or None when it can."""
    if type(tensor) not in (nn.Parameter, torch.Tensor, Resting):
        return f"{type(tensor).__name__} is a tensor subclass with a layout of its own"
    if tensor.device.type == "meta":
        return "it has no data"
    if tensor.layout is not torch.strided or not (tensor.is_contiguous() or _is_dense(tensor)):
        return "its memory is not one dense block"
    return None


def layout_of(tensors: Sequence[torch.Tensor]) -> Layout:
    """Return what decides how tensors lie in a slot."""
    return tuple((t.dtype, t.shape, t.stride()) for t in tensors)


def packed_bytes(tensors: Sequence[torch.Tensor]) -> int:
    """Return the room that tensors take in a slot, alignment included."""
    return sum(_aligned(tensor.nbytes) for tensor in tensors)


def views_into(buffer: torch.Tensor, start: int, layout: Layout) -> list[nn.Parameter]:
    """Return parameters of a layout that view a byte buffer from an aligned offset on, one after the other."""
    # Outside inference mode, or the views could not be written when a layer runs without it.
    views, offset = [], start
    with torch.inference_mode(False), torch.no_grad():
        for dtype, shape, stride in layout:
            end = offset + shape.numel() * dtype.itemsize
            flat = buffer[offset:end].view(dtype)
            views.append(nn.Parameter(flat.as_strided(shape, stride), requires_grad=False))
            offset = _aligned(end)
    return views


class Slots:
    """A buffer of `capacity` bytes on `device`; `schedule` says what lies where."""

    def __init__(self, capacity: int, device: torch.device) -> None:
        self._views: dict[tuple[int, Layout], list[nn.Parameter]] = {}
        with torch.inference_mode(False):
            self._buffer = torch.empty(_aligned(capacity), dtype=torch.uint8, device=device)

    @property
    def capacity(self) -> int:
        """The size of the buffer in bytes."""
        return self._buffer.numel()

    @property
    def version(self) -> int:
        """A number that grows whenever something is written to the buffer or to a view of it."""
        return self._buffer._version

    def region(self, start: int, size: int) -> torch.Tensor:
        """Return the bytes of a region, for one flat copy."""
        return self._buffer[start : start + size]

    def views(self, start: int, layout: Layout) -> list[nn.Parameter]:
        """Return the parameters of a layout at an offset; the same ones every time."""
        found = self._views.get((start, layout))
        if found is None:
            found = self._views[start, layout] = views_into(self._buffer, start, layout)
        return found


def _is_dense(tensor: torch.Tensor) -> bool:
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def _aligned(count: int) -> int:
    return -(-count // ALIGNMENT) * ALIGNMENT
