"""The slots: one preallocated buffer on the device that holds the running layer and those that come next.

Layers of unequal size share it by bytes: it is as large as the largest pair of neighbours, not twice the largest
layer. Addresses repeat from use to use, and layers with the same layout share the views, which are made once:
the steady state constructs no tensor and allocates nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import cast

import torch
from torch import nn

from .parts import PLAIN, assemble, bytes_as_stored, distinct_parts, form_of, parts_of, why_whole

ALIGNMENT = 256
"""Every tensor in a slot starts at a multiple of this many bytes: enough for any dtype and any kernel."""

Layout = tuple[tuple[torch.dtype, torch.Size, tuple[int, ...]], ...]


def why_unmovable(tensor: torch.Tensor) -> str | None:
    """Return why a parameter cannot be copied into a slot, or None when it can, part by part."""
    why = why_whole(tensor)
    if why is not None:
        return why
    return next(filter(None, map(_why_no_block, map(bytes_as_stored, parts_of(tensor)))), None)


def layout_of(parts: Sequence[torch.Tensor]) -> Layout:
    """Return what decides how plain tensors lie in a slot."""
    return tuple((t.dtype, t.shape, t.stride()) for t in map(bytes_as_stored, parts))


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
        self._weights: dict[tuple[int, tuple[Hashable, ...]], list[nn.Parameter]] = {}
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

    def weights(self, start: int, masters: Sequence[nn.Parameter]) -> list[nn.Parameter]:
        """Return weights that are like some masters, and view the places of their parts from an offset on.

        They are the same ones every time, as far as that can be told of masters.
        """
        forms = tuple(map(form_of, masters))
        found = self._weights.get((start, forms)) if None not in forms else None
        if found is None:
            parts = distinct_parts(masters)
            places = dict(zip(map(id, parts), self.views(start, layout_of(parts)), strict=True))
            with torch.no_grad(), torch.inference_mode(False):
                found = [
                    _assembled(master, [places[id(part)] for part in parts_of(master)]) for master in masters
                ]
            if None not in forms:
                self._weights[start, forms] = found
        return found


def _assembled(master: nn.Parameter, places: Sequence[nn.Parameter]) -> nn.Parameter:
    if type(master) in PLAIN:
        return places[0]
    return cast(nn.Parameter, assemble(master, (place.detach() for place in places)))


def _why_no_block(part: torch.Tensor) -> str | None:
    if part.device.type == "meta":
        return "it has no data"
    if part.layout is not torch.strided or not (part.is_contiguous() or _is_dense(part)):
        return "its memory is not one dense block"
    return None


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
