"""Where in a file a weight is: its bytes, those that it was converted from without loss, or rows of a larger tensor."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

import torch

from .file_tensor import FileTensor
from .mapping import Areas, Memory
from .nowhere import IS_KNOWN
from .resting import Rest
from .weight_file import BEGINNING, Bytes, WeightFile, bytes_of
from .widening import stored_in

_PIECES = 16
"""A weight is looked for in tensors that have up to so many times its rows."""


def find(name: str, part: torch.Tensor, file: WeightFile, areas: Areas, *, exact: bool) -> Rest | None:
    """Return where in a file a weight is.

    A weight that is itself a view of the file in memory is not read, except where somebody has written to it. Other
    memory of files is not read directly: where the file was cut off, that ends the process.

    Args:
        name: its name; tensors with a similar one are compared first.
        part: the weight, or a part of it.
        file: the file.
        areas: where files lie in memory.
        exact: whether only its very bytes will do.
    """
    dtypes = [part.dtype] if exact or not IS_KNOWN else stored_in(part.dtype)
    address = part.data_ptr()
    area = areas.at(address, part.nbytes)
    data = memory_of(part)
    if area is not None:
        data = Memory(address).read
        ours = areas.at(file.map().address, 1)
        if ours is not None and area.file == ours.file:
            start = address - area.memory.address
            there = [tensor for tensor in _all_alike(part, file) if tensor.start == start]
            with contextlib.suppress(OSError):
                same = there and not file.differs(there[0], area.memory)
                return Rest(file, there[0], None) if same else None
    for tensor in _candidates(name, part, file, dtypes, data):
        checksum = file.checksum_if_equal(tensor, data)
        if checksum is not None:
            return Rest(file, tensor, checksum)
    return None


def memory_of(tensor: torch.Tensor) -> Bytes:
    """Return the bytes of a tensor."""
    data = bytes_of(tensor)
    return lambda start, end: data[start:end]


def _all_alike(part: torch.Tensor, file: WeightFile) -> Iterator[FileTensor]:
    yield from _whole(part, file, part.dtype)
    yield from _rows(part, file, part.dtype)


def _candidates(
    name: str, part: torch.Tensor, file: WeightFile, dtypes: list[torch.dtype], data: Bytes
) -> Iterator[FileTensor]:
    """Yield what may be a weight, the likeliest first."""
    for dtype in dtypes:
        yield from sorted(_whole(part, file, dtype), key=lambda other: -_common_suffix(name, other.name))
    beginning = bytes(data(0, min(BEGINNING * part.itemsize, part.nbytes)))
    for dtype in dtypes:
        kind = (tuple(part.shape), dtype, part.dtype)
        found = file.by_beginning(kind, functools.partial(_rows, part, file, dtype))
        yield from found.get(beginning, ())


def _whole(part: torch.Tensor, file: WeightFile, dtype: torch.dtype) -> list[FileTensor]:
    """Return the tensors that are of the shape of a weight."""
    alike = file.by_kind.get((dtype.itemsize, tuple(part.shape)), ())
    if dtype == part.dtype:
        # Some formats store one kind of 8-bit number as another. It is the bytes that count.
        return [tensor.taken_for(dtype) for tensor in alike]
    return [tensor.read_as(part.dtype) for tensor in alike if tensor.dtype == dtype]


def _rows(part: torch.Tensor, file: WeightFile, dtype: torch.dtype) -> list[FileTensor]:
    """Return the rows of larger tensors that are of the shape of a weight: of projections that were split."""
    if not part.ndim:
        return []
    count = part.shape[0]
    return [
        tensor.read_as(part.dtype).rows(first, count)
        for tensor in file.by_row.get((dtype, tuple(part.shape[1:])), ())
        if count < tensor.shape[0] <= _PIECES * count
        for first in range(0, tensor.shape[0] - count + 1, count)
    ]


def _common_suffix(one: str, other: str) -> int:
    count = 0
    for a, b in zip(reversed(one), reversed(other), strict=False):
        if a != b:
            break
        count += 1
    return count
