"""What a file says of one of its tensors, and what a weight is of it."""

from __future__ import annotations

from typing import NamedTuple

import torch

from .widening import widen_in_place


class FileTensor(NamedTuple):
    """One tensor of a file, or some rows of one.

    Attributes:
        name: that of the tensor.
        dtype: the dtype that it is stored in.
        shape: its size, row by row.
        start: the place of its first byte in the file.
        nbytes: how many bytes there are.
        used: the dtype that it is converted into as it is read; one with all of its values.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    nbytes: int
    used: torch.dtype

    @property
    def widens(self) -> bool:
        """Whether it is converted as it is read."""
        return self.dtype != self.used

    @property
    def used_bytes(self) -> int:
        """How many bytes there are of it once it was read."""
        return self.nbytes // self.dtype.itemsize * self.used.itemsize

    def read_as(self, used: torch.dtype) -> FileTensor:
        """Return the same tensor, converted as it is read."""
        return self._replace(used=used)

    def taken_for(self, dtype: torch.dtype) -> FileTensor:
        """Return the same bytes as those of another dtype of the same size."""
        return self._replace(dtype=dtype, used=dtype)

    def rows(self, first: int, count: int) -> FileTensor:
        """Return some rows of it."""
        size = self.nbytes // self.shape[0]
        shape = (count, *self.shape[1:])
        return self._replace(shape=shape, start=self.start + first * size, nbytes=count * size)

    def as_used(self, stored: bytearray) -> bytearray:
        """Return some of its values, as they are stored, as they are used."""
        if not self.widens:
            return stored
        used = bytearray(len(stored) // self.dtype.itemsize * self.used.itemsize)
        used[-len(stored) :] = stored
        widen_in_place(memoryview(used), self.dtype, self.used, in_thread=True)
        return used
