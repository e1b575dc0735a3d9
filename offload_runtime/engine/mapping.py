"""A file as private memory, and which of its pages somebody has written to.

The system copies a page for the process when it is first written to, and keeps the copy for good. Linux tells which
pages those are, and which file lies where in memory; elsewhere nothing is known.
"""

from __future__ import annotations

import bisect
import contextlib
import mmap
import os
import re
import sys
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import NamedTuple

import torch

_PAGES_AT_ONCE = 1 << 14

_MAPS = "/proc/self/maps"
_PAGEMAP = "/proc/self/pagemap"

# Readable memory of a file, not that of a device, which cannot be read in every way: its addresses, its offset, and
# what the system calls the file.
_OF_A_FILE = re.compile(
    rb"^([0-9a-f]+)-([0-9a-f]+) r\S* ([0-9a-f]+) (\S+ [1-9]\d*) +/(?!dev/)(.*)$", re.MULTILINE
)
_LIBRARY = re.compile(rb"\.so[.0-9]*( \(deleted\))?$")

# The latter has a word of 64 bits for each page. Bit 63: it is in memory, 62: swapped out, 61: the file's.
_WORD = 8
_TOP_BYTE = _WORD - 1 if sys.byteorder == "little" else 0
_IS_COPY = bytes(bool(top & 0b1100_0000) and not top & 0b0010_0000 for top in range(256))


class Stretch(NamedTuple):
    """Some bytes of a file, from `start` to before `end`."""

    start: int
    end: int


class Memory:
    """A file as it lies in memory.

    Args:
        address: where its first byte is, or would be.
    """

    def __init__(self, address: int) -> None:
        self.address = address

    def written(self, start: int, size: int) -> Iterator[Stretch]:
        """Yield the parts of a range of the file that lie in pages that were written to, in order.

        Raises:
            OSError: the system does not tell.
        """
        first = (self.address + start) // mmap.PAGESIZE
        count = (self.address + start + size - 1) // mmap.PAGESIZE + 1 - first
        with open(_PAGEMAP, "rb", buffering=0) as pages:
            for page in range(first, first + count, _PAGES_AT_ONCE):
                asked = min(_PAGES_AT_ONCE, first + count - page)
                words = os.pread(pages.fileno(), asked * _WORD, page * _WORD)
                if len(words) < asked * _WORD:
                    raise OSError("the system tells of fewer pages")
                for found in re.finditer(b"\x01+", words[_TOP_BYTE::_WORD].translate(_IS_COPY)):
                    begin, end = ((page + p) * mmap.PAGESIZE - self.address for p in found.span())
                    yield Stretch(max(begin, start), min(end, start + size))

    def read(self, start: int, end: int) -> bytes:
        """Return what the memory holds; less where it cannot be read, as when the file was cut off."""
        with contextlib.suppress(OSError), open("/proc/self/mem", "rb", buffering=0) as memory:
            return os.pread(memory.fileno(), end - start, self.address + start)
        return b""


class Mapping(Memory):
    """A file as memory that a write changes for this process only, and in the file never.

    Args:
        file: the file; it may be closed afterwards.

    Raises:
        OSError, ValueError: it cannot be mapped.
    """

    def __init__(self, file: FileIO) -> None:
        self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        super().__init__(torch.frombuffer(self._map, dtype=torch.uint8).data_ptr())

    def __len__(self) -> int:
        return len(self._map)

    def view(self, start: int, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Return `count` values from an offset on. Whoever has them keeps the mapping."""
        return torch.frombuffer(self._map, dtype=dtype, count=count, offset=start)

    def written(self, start: int, size: int) -> Iterator[Stretch]:
        """Yield the parts of a range that lie in pages that were written to; none where the system does not tell."""
        with contextlib.suppress(OSError):
            yield from super().written(start, size)

    def drop_written(self) -> None:
        """Give up what was written: all of it is as in the file again, and takes no memory."""
        for start, end in self.written(0, len(self)):
            self._map.madvise(mmap.MADV_DONTNEED, start, end - start)


class Area(NamedTuple):
    """A range of addresses at which a file lies; `file` is what the system calls it."""

    start: int
    end: int
    memory: Memory
    file: tuple[bytes, ...]


class Areas:
    """Where files lie in memory now, whoever has mapped them; nowhere, where the system does not tell."""

    def __init__(self) -> None:
        self._areas: list[Area] = []
        with contextlib.suppress(OSError):
            for line in _OF_A_FILE.findall(Path(_MAPS).read_bytes()):
                if not _LIBRARY.search(line[-1]):  # there are hundreds, without weights
                    self._add(*line)
        self._starts = [area.start for area in self._areas]

    def at(self, address: int, size: int) -> Area | None:
        """Return the area that some memory lies in, or None when it is no file's."""
        index = bisect.bisect_right(self._starts, address) - 1
        found = self._areas[index] if index >= 0 else None
        return found if found is not None and address + size <= found.end else None

    def _add(self, begins: bytes, ends: bytes, offset: bytes, *file: bytes) -> None:
        start, end = int(begins, 16), int(ends, 16)
        # The number of an inode is not enough: that of the device is not the one that `fstat` has on every file
        # system. Another mapping is compared with ours.
        area = Area(start, end, Memory(start - int(offset, 16)), file)
        before = self._areas[-1] if self._areas else None
        if before and (before.end, before.memory.address, before.file) == (
            start,
            area.memory.address,
            area.file,
        ):
            self._areas[-1] = before._replace(end=end)
        else:
            self._areas.append(area)
