"""A file as private memory, and which of its pages somebody has written to.

The system copies a page for the process when it is first written to, and keeps the copy for good. Linux tells which
pages those are; elsewhere none are known.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import sys
from collections.abc import Iterator
from io import FileIO
from typing import NamedTuple

import torch

_PAGES_AT_ONCE = 1 << 14

# /proc/self/pagemap has a word of 64 bits for each page. Bit 63: it is in memory, 62: swapped out, 61: the file's.
_WORD = 8
_TOP_BYTE = _WORD - 1 if sys.byteorder == "little" else 0
_IS_COPY = bytes(bool(top & 0b1100_0000) and not top & 0b0010_0000 for top in range(256))


class Stretch(NamedTuple):
    """Some bytes of a file, from `start` to before `end`."""

    start: int
    end: int


class Mapping:
    """A file as memory that a write changes for this process only, and in the file never.

    Args:
        file: the file; it may be closed afterwards.

    Raises:
        OSError, ValueError: it cannot be mapped.
    """

    def __init__(self, file: FileIO) -> None:
        self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        self._address = torch.frombuffer(self._map, dtype=torch.uint8).data_ptr()

    def __len__(self) -> int:
        return len(self._map)

    def view(self, start: int, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Return `count` values from an offset on. Whoever has them keeps the mapping."""
        return torch.frombuffer(self._map, dtype=dtype, count=count, offset=start)

    def written(self, start: int, size: int) -> Iterator[Stretch]:
        """Yield the parts of a range of the file that lie in pages that were written to, in order."""
        first = (self._address + start) // mmap.PAGESIZE
        count = (self._address + start + size - 1) // mmap.PAGESIZE + 1 - first
        with contextlib.suppress(OSError), open("/proc/self/pagemap", "rb", buffering=0) as pages:
            for page in range(first, first + count, _PAGES_AT_ONCE):
                asked = min(_PAGES_AT_ONCE, first + count - page)
                words = os.pread(pages.fileno(), asked * _WORD, page * _WORD)
                for found in re.finditer(b"\x01+", words[_TOP_BYTE::_WORD].translate(_IS_COPY)):
                    begin, end = ((page + p) * mmap.PAGESIZE - self._address for p in found.span())
                    yield Stretch(max(begin, start), min(end, start + size))

    def read(self, stretch: Stretch) -> bytes:
        """Return what the memory holds; less where it cannot be read, as when the file was cut off."""
        with contextlib.suppress(OSError), open("/proc/self/mem", "rb", buffering=0) as memory:
            return os.pread(memory.fileno(), stretch.end - stretch.start, self._address + stretch.start)
        return b""

    def drop_written(self) -> None:
        """Give up what was written: all of it is as in the file again, and takes no memory."""
        for start, end in self.written(0, len(self)):
            self._map.madvise(mmap.MADV_DONTNEED, start, end - start)
