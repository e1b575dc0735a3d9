"""How fast a file comes into memory: from the disk, and from what the system keeps of it in memory."""

from __future__ import annotations

import os
import random
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from .link import Step

_CHUNK = 8 << 20
_LEAST = 16 << 20
_PROBES = 32
_SAME = 2
"""Where nobody tells, and a disk is not so much slower than memory, it was memory that was read."""


@dataclass(frozen=True)
class Reads:
    """What was read.

    Attributes:
        size: bytes of the file.
        disk: bytes per second from the disk; None where the system would not forget the file.
        cached: bytes per second when the system has the file in memory.
        wanted: how large the file should have been.
    """

    size: int
    disk: float | None
    cached: float
    wanted: int


def disk_speed(folder: Path, size: int, step: Step) -> Reads:
    """Write a file without a name, which is gone when this returns or ends in whatever way, and read it.

    Args:
        folder: where.
        size: its bytes; a quarter of that, and so on, where there is no room for it.
        step: called between chunks.

    Raises:
        OSError: the folder cannot be written to, or has no room for 16 MB.
    """
    wanted = size
    while True:
        try:
            with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
                return _measured(cast(BinaryIO, file), size, wanted, step)
        except OSError:
            size //= 4
            if size < _LEAST:
                raise


def _measured(file: BinaryIO, size: int, wanted: int, step: Step) -> Reads:
    chunk = random.Random(7).randbytes(min(size, _CHUNK))  # no file system can make it smaller
    for _ in range(size // len(chunk)):
        step()
        _write(file, chunk)
    os.fsync(file.fileno())
    forgotten = _forgotten(file.fileno(), size)
    room = bytearray(chunk)  # written once, so that the first read need not find memory for it
    first = _read(file, room, step)
    cached = max(_read(file, room, step) for _ in range(2))
    if forgotten is None:
        forgotten = cached > first * _SAME
    return Reads(size, first if forgotten else None, cached, wanted)


def _forgotten(number: int, size: int) -> bool | None:
    """Ask the system to forget a file, and return whether it has; None where it does not tell."""
    if not hasattr(os, "posix_fadvise"):
        return False
    os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)
    if not hasattr(os, "RWF_NOWAIT"):
        return None
    byte, in_memory = bytearray(1), 0
    for place in range(_PROBES):
        try:
            os.preadv(number, [byte], size * place // _PROBES, os.RWF_NOWAIT)
            in_memory += 1
        except BlockingIOError:  # it would have to read
            continue
        except OSError:  # the file system has no such way to read
            return None
    return in_memory <= _PROBES // 8


def _write(file: BinaryIO, chunk: bytes) -> None:
    left = memoryview(chunk)
    while left:  # a disk that is almost full takes a part
        left = left[file.write(left) :]


def _read(file: BinaryIO, room: bytearray, step: Step) -> float:
    """Return the bytes per second of reading all of a file."""
    file.seek(0)
    read, took = 0, 0.0
    while True:
        step()
        start = time.perf_counter()
        count = int(file.readinto(room))  # type: ignore[attr-defined]
        took += time.perf_counter() - start
        read += count
        if not count:
            return read / took
