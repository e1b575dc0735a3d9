"""A safetensors file that weights are read from again and again.

Whoever maps a file and reads its pages is killed by a signal when the file has been cut off, and sees the bytes of
two files when it has been written to. Here, bytes are copied out through a descriptor that stays open: a file that
was deleted or replaced stays readable, and one that was changed in place is an exception.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import threading
import weakref
import zlib
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..errors import WeightFileError
from .mapping import Mapping, Stretch

_MAX_HEADER = 100_000_000
"""The size that the format itself allows a header."""

_CHUNK = 1 << 18

_DTYPES = {
    name: getattr(torch, attribute)
    for name, attribute in {
        "BOOL": "bool",
        "U8": "uint8",
        "I8": "int8",
        "U16": "uint16",
        "I16": "int16",
        "U32": "uint32",
        "I32": "int32",
        "U64": "uint64",
        "I64": "int64",
        "F8_E4M3": "float8_e4m3fn",
        "F8_E5M2": "float8_e5m2",
        "F16": "float16",
        "BF16": "bfloat16",
        "F32": "float32",
        "F64": "float64",
    }.items()
    if hasattr(torch, attribute)
}


class FileTensor(NamedTuple):
    """One tensor of a file: `nbytes` bytes from `start` on, row by row."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    nbytes: int


class Identity(NamedTuple):
    """What changes when a file is written to. It may also change when it is not."""

    size: int
    inode: int
    modified_ns: int
    changed_ns: int


class WeightFile:
    """An open safetensors file.

    Args:
        path: the file.

    Attributes:
        identity: what it was like when it was opened.
        by_kind: (dtype, shape) → its tensors of that kind.

    Raises:
        OSError: it cannot be opened or read.
        ValueError: it is no safetensors file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._file = _open(path)
        self._close = weakref.finalize(self, self._file.close)
        self._map: Mapping | None = None
        self.identity = _identity(self._file)
        self.by_kind: dict[tuple[torch.dtype, tuple[int, ...]], list[FileTensor]] = {}
        for tensor in self._read_header():
            self.by_kind.setdefault((tensor.dtype, tensor.shape), []).append(tensor)

    def is_unchanged(self) -> bool:
        """Tell whether the file is certainly as it was when it was opened."""
        with self._lock:
            return _identity(self._file) == self.identity

    def checksum_if_equal(self, tensor: FileTensor, data: memoryview) -> int | None:
        """Return the checksum of some bytes if they are those of a tensor in the file, or None."""
        checksum, chunk = 0, bytearray(min(_CHUNK, tensor.nbytes))
        for start in range(0, tensor.nbytes, _CHUNK):
            part = memoryview(chunk)[: tensor.nbytes - start]
            with self._lock:
                if not _read(self._file, tensor.start + start, part) or part != data[start : start + _CHUNK]:
                    return None
            checksum = zlib.crc32(part, checksum)
        return checksum

    def read_into(self, data: memoryview, tensor: FileTensor, checksum: int) -> None:
        """Read a tensor's bytes: those that had the checksum, or none; and over them what was written in memory.

        Raises:
            WeightFileError: neither the file nor the one that has its name now has those bytes.
        """
        with self._lock:
            if self._read_unchanged(data, tensor, checksum) and self._add_written(data, tensor):
                return
        raise WeightFileError(
            f"the model file {self.path} has changed on disk since it was loaded, and its weight {tensor.name!r} "
            "cannot be read any more; `layerwise` reads weights from there when they are used. Put the same file "
            "back, or choose Unload Models and Execution Cache in ComfyUI's menu, so that it is loaded again"
        )

    def _read_unchanged(self, data: memoryview, tensor: FileTensor, checksum: int) -> bool:
        """Read the bytes that had a checksum, and tell whether they are still there.

        While the file is unchanged nothing is added up. Once it is not, every read is checked, because it may
        only have been touched, or moved, or written again with the same bytes; and then also the file that has
        its name now will do.
        """
        whole = _read(self._file, tensor.start, data)
        if whole and (_identity(self._file) == self.identity or zlib.crc32(data) == checksum):
            return True
        with contextlib.suppress(OSError):
            successor = _open(self.path)
            if _read(successor, tensor.start, data) and zlib.crc32(data) == checksum:
                self._close()
                self._file, self._close = successor, weakref.finalize(self, successor.close)
                return True
            successor.close()
        return False

    def _add_written(self, data: memoryview, tensor: FileTensor) -> bool:
        """Put what was written in memory over a tensor's bytes; False where it is there no more."""
        for stretch in self.written(tensor):
            found, start = self.map().read(stretch), stretch.start - tensor.start
            if len(found) < stretch.end - stretch.start:
                return False
            data[start : start + len(found)] = found
        return True

    def read_rows(self, data: memoryview, tensor: FileTensor, rows: list[int]) -> bool:
        """Read some rows of a matrix, and tell whether they are certainly those: nobody has written to any of them."""
        size = tensor.nbytes // tensor.shape[0]
        starts = [tensor.start + row * size for row in rows]
        with self._lock:
            return (
                all(
                    _read(self._file, start, data[i * size : (i + 1) * size])
                    for i, start in enumerate(starts)
                )
                and _identity(self._file) == self.identity
                and not any(any(self.map().written(start, size)) for start in starts)
            )

    def written(self, tensor: FileTensor) -> list[Stretch]:
        """Return the parts of the file's mapping where somebody has written, as far as they are a tensor's."""
        return list(self._map.written(tensor.start, tensor.nbytes)) if self._map is not None else []

    def is_written(self) -> bool:
        """Tell whether anybody has written into the file's mapping."""
        return self._map is not None and any(self._map.written(0, len(self._map)))

    def differs(self, tensor: FileTensor) -> bool:
        """Tell whether a tensor is not the same any more in the file and in its mapping."""
        chunk = bytearray(_CHUNK)
        for start, end in self.written(tensor):
            for at in range(start, end, _CHUNK):
                part = memoryview(chunk)[: end - at]
                with self._lock:
                    same = _read(self._file, at, part)
                if not same or part != self.map().read(Stretch(at, at + len(part))):
                    return True
        return False

    def drop_written(self) -> None:
        """Give up all that was written into the mapping."""
        if self._map is not None:
            self._map.drop_written()

    def read_ahead(self, tensor: FileTensor) -> None:
        """Start to read a tensor's bytes into the system's cache, where it can be asked to; returns at once."""
        if hasattr(os, "posix_fadvise"):
            with self._lock, contextlib.suppress(OSError):
                os.posix_fadvise(self._file.fileno(), tensor.start, tensor.nbytes, os.POSIX_FADV_WILLNEED)

    def map(self) -> Mapping:
        """Return the file as mapped memory, the same every time, and private: a write never reaches the file.

        Raises:
            OSError, ValueError: it cannot be mapped.
        """
        if self._map is None:
            self._map = Mapping(self._file)
        return self._map

    def _read_header(self) -> list[FileTensor]:
        prefix = bytearray(8)
        if not _read(self._file, 0, memoryview(prefix)):
            raise ValueError("shorter than its own length")
        size = int.from_bytes(prefix, "little")
        if size > min(_MAX_HEADER, self.identity.size - 8):
            raise ValueError("a header longer than the file")
        header = bytearray(size)
        _read(self._file, 8, memoryview(header))
        try:
            entries = dict(json.loads(header))
            found = [
                _entry(name, entry, 8 + size) for name, entry in entries.items() if name != "__metadata__"
            ]
        except (TypeError, KeyError, OverflowError, RecursionError) as error:
            raise ValueError("a header of another kind") from error
        return [tensor for tensor in found if tensor and _lies_in(tensor, 8 + size, self.identity)]


def dtypes_in_file(path: Path) -> dict[tuple[int, ...], set[torch.dtype]]:
    """Return shape → the dtypes that a safetensors file has tensors of that shape in; nothing for another file."""
    dtypes: dict[tuple[int, ...], set[torch.dtype]] = {}
    with contextlib.suppress(OSError, ValueError):
        for dtype, shape in WeightFile(path).by_kind:
            dtypes.setdefault(shape, set()).add(dtype)
    return dtypes


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """Return the memory of a dense tensor on the CPU; valid while the tensor is."""
    return memoryview((ctypes.c_ubyte * tensor.nbytes).from_address(tensor.data_ptr())).cast("B")


def _entry(name: str, entry: dict[str, Any], base: int) -> FileTensor | None:
    """Return what the header says of one tensor, or None for a dtype that this torch does not have."""
    start, end = map(int, entry["data_offsets"])
    dtype = _DTYPES.get(entry["dtype"])
    return dtype and FileTensor(name, dtype, tuple(map(int, entry["shape"])), base + start, end - start)


def _lies_in(tensor: FileTensor, base: int, identity: Identity) -> bool:
    return (
        base <= tensor.start <= tensor.start + tensor.nbytes <= identity.size
        and tensor.nbytes == math.prod(tensor.shape) * tensor.dtype.itemsize
    )


def _open(path: Path) -> FileIO:
    return open(path, "rb", buffering=0)


def _identity(file: FileIO) -> Identity:
    status = os.fstat(file.fileno())
    return Identity(status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns)


def _read(file: FileIO, start: int, data: memoryview) -> bool:
    """Fill `data` from an offset on; False where the file ends before, or cannot be read there."""
    filled = 0
    try:
        file.seek(start)
        while filled < len(data):
            count = file.readinto(data[filled:])
            if not count:
                return False
            filled += count
    except OSError:
        return False
    return True
