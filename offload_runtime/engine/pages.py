"""Advice to the kernel about the pages of mapped weights.

`MADV_PAGEOUT` (Linux 5.4) never loses data: clean file pages are dropped and read again from the file, and a
page that somebody wrote to is kept or swapped. `MADV_DONTNEED` would silently undo such a write.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import sys
from collections.abc import Callable

import torch

_WILLNEED = 3
_PAGEOUT = 21


@functools.cache
def can_page_out() -> bool:
    """Tell whether this system can drop pages on request (Linux 5.4 and later)."""
    probe = torch.zeros(2 * mmap.PAGESIZE, dtype=torch.uint8)
    return _advise(probe, _PAGEOUT, whole_pages_only=True)


def read_ahead(tensor: torch.Tensor) -> None:
    """Start reading a mapped tensor's pages from the file; returns at once."""
    _advise(tensor, _WILLNEED, whole_pages_only=False)


def page_out(tensor: torch.Tensor) -> None:
    """Drop a mapped tensor's pages from memory; the next use reads them from the file again."""
    _advise(tensor, _PAGEOUT, whole_pages_only=True)


def _advise(tensor: torch.Tensor, advice: int, *, whole_pages_only: bool) -> bool:
    madvise = _madvise()
    if madvise is None:
        return False
    start, end = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
    if whole_pages_only:  # a page shared with a neighbour is not ours to drop
        start, end = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
    else:
        start = start // mmap.PAGESIZE * mmap.PAGESIZE
    return end > start and madvise(start, end - start, advice) == 0


@functools.cache
def _madvise() -> Callable[[int, int, int], int] | None:
    if sys.platform != "linux":
        return None
    function = ctypes.CDLL(None, use_errno=True).madvise
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    function.restype = ctypes.c_int
    return function
