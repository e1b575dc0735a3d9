"""A slot: one preallocated buffer on the device that holds one layer at a time.

Layers with the same layout share the views, which are made once, so that the steady state constructs no
tensor and allocates nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

ALIGNMENT = 256
"""Every tensor in a slot starts at a multiple of this many bytes: enough for any dtype and any kernel."""

Layout = tuple[tuple[torch.dtype, torch.Size, tuple[int, ...]], ...]


def why_unmovable(tensor: torch.Tensor) -> str | None:
    """Return why a parameter cannot be copied into a slot view, or None when it can."""
    if type(tensor) not in (nn.Parameter, torch.Tensor):
        return f"{type(tensor).__name__} is a tensor subclass with a layout of its own"
    if tensor.device.type == "meta":
        return "it has no data"
    if tensor.layout is not torch.strided or not _is_dense(tensor):
        return "its memory is not one dense block"
    return None


def layout_of(tensors: Sequence[torch.Tensor]) -> Layout:
    """Return what decides how tensors lie in a slot."""
    return tuple((t.dtype, t.shape, t.stride()) for t in tensors)


def slot_bytes(tensors: Sequence[torch.Tensor]) -> int:
    """Return the room that tensors take in a slot, alignment included."""
    return sum(_aligned(tensor.nbytes) for tensor in tensors)


class Slot:
    """A buffer of `capacity` bytes on `device`, and the parameter views into it per layout."""

    def __init__(self, capacity: int, device: torch.device) -> None:
        self._views: dict[Layout, list[nn.Parameter]] = {}
        with torch.inference_mode(False):
            self._buffer = torch.empty(capacity, dtype=torch.uint8, device=device)

    @property
    def capacity(self) -> int:
        """The size of the buffer in bytes."""
        return self._buffer.numel()

    def fill(self, tensors: Sequence[torch.Tensor]) -> list[nn.Parameter]:
        """Copy tensors into the slot and return parameters that view them there, in the same order.

        The parameters stay valid until the next `fill`.
        """
        layout = layout_of(tensors)
        views = self._views.get(layout)
        if views is None:
            views = self._views[layout] = self._make_views(layout)
        for view, tensor in zip(views, tensors, strict=True):
            view.copy_(tensor)
        return views

    def _make_views(self, layout: Layout) -> list[nn.Parameter]:
        # Outside inference mode, or the views could not be written when a layer runs without it.
        views, offset = [], 0
        with torch.inference_mode(False), torch.no_grad():
            for dtype, shape, stride in layout:
                count = shape.numel()
                end = offset + count * dtype.itemsize
                flat = self._buffer[offset:end].view(dtype)
                views.append(nn.Parameter(flat.as_strided(shape, stride), requires_grad=False))
                offset = _aligned(end)
        return views


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
