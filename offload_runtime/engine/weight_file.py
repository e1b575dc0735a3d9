"""A safetensors file that weights are read from again and again.

Whoever maps a file and reads its pages is killed by a signal when the file has been cut off, and sees the bytes of
two files when it has been written to. Here, bytes are copied out through a descriptor that stays open: a file that
was deleted or replaced stays readable, and one that was changed in place is an exception.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import math
import os
import threading
import weakref
import zlib
from collections.abc import Callable, Hashable, Iterable
from io import FileIO
from pathlib import Path
from typing import Any

import torch

from ..errors import WeightFileError
from .file_tensor import FileTensor
from .mapping import Mapping, Memory, Stretch
from .open_file import Identity, fingerprint, identity_of, open_file, read

MAX_HEADER = 100_000_000
"""The size that the format itself allows a header."""

_CHUNK = 1 << 18

BEGINNING = 32
"""As many values of a tensor tell it from most others."""

_SPOT = 1 << 12
_SPOTS = 4

Bytes = Callable[[int, int], Any]
"""Some bytes in memory: returns a buffer of those from the first index to before the second."""

DTYPES = {
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
        "F8_E8M0": "float8_e8m0fnu",
        "F16": "float16",
        "BF16": "bfloat16",
        "F32": "float32",
        "F64": "float64",
    }.items()
    if hasattr(torch, attribute)
}


class WeightFile:
    """An open safetensors file.

    Args:
        path: the file.

    Attributes:
        identity: what it was like when it was opened.
        by_kind: (bytes of a value, shape) → its tensors of that kind.
        by_row: (dtype, shape of a row) → its tensors with such rows.

    Raises:
        OSError: it cannot be opened or read.
        ValueError: it is no safetensors file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._file = open_file(path)
        self._close = weakref.finalize(self, self._file.close)
        self._map: Mapping | None = None
        self._by_beginning: dict[Hashable, dict[bytes, list[FileTensor]]] = {}
        self._header = 0
        self.identity = identity_of(self._file)
        self.by_kind: dict[tuple[int, tuple[int, ...]], list[FileTensor]] = {}
        self.by_row: dict[tuple[torch.dtype, tuple[int, ...]], list[FileTensor]] = {}
        for tensor in self._read_header():
            self.by_kind.setdefault((tensor.dtype.itemsize, tensor.shape), []).append(tensor)
            if tensor.shape:
                self.by_row.setdefault((tensor.dtype, tensor.shape[1:]), []).append(tensor)
        self._fingerprint = fingerprint(self._file, self._header)
        self._alike = self.identity
        self._same: dict[
            tuple[int, int], Identity
        ] = {}  # place → what the file was like when it was the same there

    def is_in_place(self) -> bool:
        """Tell whether what is mapped is still there, all of it, whatever it holds now."""
        with self._lock, contextlib.suppress(OSError):
            now = identity_of(self._file)
            return (now.inode, now.size) == (self.identity.inode, self.identity.size)
        return False

    def checksum_if_equal(self, tensor: FileTensor, data: Bytes) -> int | None:
        """Return the checksum of a tensor in the file if some bytes are those that are read of it, or None.

        Most tensors that are tried are others, and differ nearly everywhere: a few spots are compared first.
        """
        size, step = tensor.nbytes, tensor.dtype.itemsize
        spots = [size * spot // _SPOTS for spot in range(_SPOTS)] + [size - _SPOT] if size > _CHUNK else []
        spots = [spot // step * step for spot in spots]
        if not all(self._is_that_of(tensor, start, data, bytearray(_SPOT)) for start in spots):
            return None
        checksum, buffer = 0, bytearray(min(_CHUNK, size))
        for start in range(0, size, _CHUNK):
            del buffer[size - start :]
            if not self._is_that_of(tensor, start, data, buffer):
                return None
            checksum = zlib.crc32(buffer, checksum)
        return checksum

    def checksum(self, tensor: FileTensor) -> int | None:
        """Return the checksum of a tensor's bytes, or None where they may not be those that were there before."""
        buffer = bytearray(min(_CHUNK, tensor.nbytes))

        def sum_up(file: FileIO) -> int | None:
            checksum, before = 0, identity_of(file)
            for start in range(0, tensor.nbytes, _CHUNK):
                chunk = memoryview(buffer)[: tensor.nbytes - start]
                if not read(file, tensor.start + start, chunk):
                    return None
                checksum = zlib.crc32(chunk, checksum)
            return checksum if self._is_alike(file, tensor, before) else None

        with self._lock:
            return self._from_either(sum_up)

    def _is_that_of(self, tensor: FileTensor, start: int, data: Bytes, buffer: bytearray) -> bool:
        """Read a part of a tensor into a buffer, and tell whether it is that of the data."""
        with self._lock:
            if not read(self._file, tensor.start + start, memoryview(buffer)):
                return False
        used, ratio = tensor.as_used(buffer), tensor.used.itemsize // tensor.dtype.itemsize
        # Only a bytearray compares at memory speed.
        return bool(used == data(start * ratio, start * ratio + len(used)))

    def by_beginning(
        self, kind: Hashable, tensors: Callable[[], Iterable[FileTensor]]
    ) -> dict[bytes, list[FileTensor]]:
        """Return how they begin → tensors of some kind, which are read only once."""
        found = self._by_beginning.get(kind)
        if found is None:
            found = {}
            for tensor in tensors():
                found.setdefault(self._beginning(tensor), []).append(tensor)
            self._by_beginning[kind] = found
        return found

    def _beginning(self, tensor: FileTensor) -> bytes:
        """Return the first bytes of a tensor as they are used; none where they cannot be read."""
        buffer = bytearray(min(BEGINNING * tensor.dtype.itemsize, tensor.nbytes))
        with self._lock:
            whole = read(self._file, tensor.start, memoryview(buffer))
        return bytes(tensor.as_used(buffer)) if whole else b""

    def read_into(self, data: memoryview, tensor: FileTensor, checksum: int | None) -> int:
        """Read a tensor's bytes, and over them what was written in memory.

        Args:
            data: where to.
            tensor: which.
            checksum: the bytes are those that have it, or none; None where it is not known yet, and then the file
                must be like the one that it was.

        Returns:
            The checksum of the bytes in the file.

        Raises:
            WeightFileError: neither the file nor the one that has its name now has those bytes.
        """
        with self._lock:
            found = self._read_unchanged(data, tensor, checksum)
            if found is not None and self._add_written(data, tensor):
                return found
        way = ", or put the same file back" if checksum is not None else ""
        raise WeightFileError(
            f"the model file {self.path} has changed on disk since it was loaded, and its weight {tensor.name!r} "
            f"cannot be read any more; `layerwise` reads weights from there when they are used. Choose Unload "
            f"Models and Execution Cache in ComfyUI's menu, so that it is loaded again{way}"
        )

    def _read_unchanged(self, data: memoryview, tensor: FileTensor, checksum: int | None) -> int | None:
        """Read the bytes that had a checksum, and return it, or None when they are not there any more.

        While the file is unchanged nothing is added up that is known. Once it is not, every tensor is checked when it
        is read next, because the file may only have been touched, or moved, or written again with the same bytes.
        """

        def read_it(file: FileIO) -> int | None:
            before = identity_of(file)
            if not read(file, tensor.start, data):
                return None
            if checksum is not None and self._was_same(tensor, before) and identity_of(file) == before:
                return checksum
            found = zlib.crc32(data)
            if checksum is None:
                return found if self._is_alike(file, tensor, before) else None
            if found == checksum:
                self._same[tensor.start, tensor.nbytes] = before
                return found
            return None

        return self._from_either(read_it)

    def _from_either(self, attempt: Callable[[FileIO], int | None]) -> int | None:
        """Try something with the file, and then with that which has its name now; the lock is held."""
        with contextlib.suppress(OSError):
            found = attempt(self._file)
            if found is not None:
                return found
        with contextlib.suppress(OSError):
            successor = open_file(self.path)
            close = weakref.finalize(self, successor.close)
            found = attempt(successor)
            if found is not None:
                self._close()
                self._file, self._close = successor, close
                return found
            close()
        return None

    def _was_same(self, tensor: FileTensor, now: Identity) -> bool:
        """Tell whether a tensor is as it was, from what its file is like now."""
        return now in (self.identity, self._same.get((tensor.start, tensor.nbytes)))

    def _is_alike(self, file: FileIO, tensor: FileTensor, before: Identity) -> bool:
        """Tell whether a file of which a tensor has just been read, for the first time, is like the one it was.

        Nobody knows how the bytes of that tensor were, and nothing was computed from them. Where the file is like
        the one it was, they are those of the same model, and those that are in the file now.

        Args:
            file: that file, or its successor.
            tensor: the tensor.
            before: what the file was like before that.
        """
        known = before in (self.identity, self._alike)
        if not known and fingerprint(file, self._header) != self._fingerprint:
            return False
        if identity_of(file) != before:
            return False
        self._alike = self._same[tensor.start, tensor.nbytes] = before
        return True

    def _add_written(self, data: memoryview, tensor: FileTensor) -> bool:
        """Put what was written in memory over a tensor's bytes; False where it is there no more."""
        for stretch in self.written(tensor):
            found, start = self.map().read(*stretch), stretch.start - tensor.start
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
                    read(self._file, start, data[i * size : (i + 1) * size]) for i, start in enumerate(starts)
                )
                and self._was_same(tensor, identity_of(self._file))
                and not any(self.written(tensor._replace(start=start, nbytes=size)) for start in starts)
            )

    def written(self, tensor: FileTensor) -> list[Stretch]:
        """Return the parts of the file's mapping where somebody has written, as far as they are a tensor's.

        One that is converted is not read from there, whatever is written.
        """
        if self._map is None or tensor.widens:
            return []
        return list(self._map.written(tensor.start, tensor.nbytes))

    def is_written(self) -> bool:
        """Tell whether anybody has written into the file's mapping."""
        return self._map is not None and any(self._map.written(0, len(self._map)))

    def differs(self, tensor: FileTensor, memory: Memory) -> bool:
        """Tell whether a tensor is not the same any more in the file and where the file is mapped.

        Raises:
            OSError: the system does not tell.
        """
        for stretch in memory.written(tensor.start, tensor.nbytes):
            for start in range(stretch.start, stretch.end, _CHUNK):
                buffer = bytearray(min(_CHUNK, stretch.end - start))
                with self._lock:
                    same = read(self._file, start, memoryview(buffer))
                if not same or buffer != memory.read(start, start + len(buffer)):
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
        if not read(self._file, 0, memoryview(prefix)):
            raise ValueError("shorter than its own length")
        size = int.from_bytes(prefix, "little")
        if size > min(MAX_HEADER, self.identity.size - 8):
            raise ValueError("a header longer than the file")
        self._header = 8 + size
        header = bytearray(size)
        read(self._file, 8, memoryview(header))
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
        for tensor in itertools.chain.from_iterable(WeightFile(path).by_kind.values()):
            dtypes.setdefault(tensor.shape, set()).add(tensor.dtype)
    return dtypes


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """Return the memory of a dense tensor on the CPU; valid while the tensor is."""
    return memoryview((ctypes.c_ubyte * tensor.nbytes).from_address(tensor.data_ptr())).cast("B")


def _entry(name: str, entry: dict[str, Any], base: int) -> FileTensor | None:
    """Return what the header says of one tensor, or None for a dtype that this torch does not have."""
    start, end = map(int, entry["data_offsets"])
    dtype = DTYPES.get(entry["dtype"])
    return dtype and FileTensor(
        name, dtype, tuple(map(int, entry["shape"])), base + start, end - start, dtype
    )


def _lies_in(tensor: FileTensor, base: int, identity: Identity) -> bool:
    return (
        base <= tensor.start <= tensor.start + tensor.nbytes <= identity.size
        and tensor.nbytes == math.prod(tensor.shape) * tensor.dtype.itemsize
    )
