"""Eight-bit floats as float32, on the CPU: torch converts them one by one, and half precision several times faster.

Two neighbours together have 65536 values, so that a table of all pairs fits into the CPU's cache. Looked up in
stretches that fit there too, it is as fast as converting half precision.
"""

from __future__ import annotations

import functools

import torch

from ..engine.resting import Resting

EIGHT_BITS = (torch.float8_e4m3fn, torch.float8_e5m2)

_STRETCH = 1 << 18
"""Pairs that are looked up at once."""


def widened(weight: torch.Tensor) -> torch.Tensor:
    """Return a weight of eight-bit floats as float32: the same bits as `weight.float()`."""
    flat = weight.detach().view(-1).view(torch.uint16)
    pairs, wide = _pairs(weight.dtype), torch.empty(flat.numel(), dtype=torch.int64)
    for start in range(0, flat.numel(), _STRETCH):
        indices = flat[start : start + _STRETCH].to(torch.int32)
        torch.index_select(pairs, 0, indices, out=wide[start : start + _STRETCH])
    return wide.view(torch.float32).view(weight.shape)


def can_widen(weight: torch.Tensor) -> bool:
    """Tell whether a weight can be converted here: it is of eight-bit floats, and in memory."""
    in_memory = weight.is_cpu and weight.is_contiguous() and not isinstance(weight, Resting)
    in_pairs = weight.numel() % 2 == 0 and int(weight.storage_offset()) % 2 == 0
    return weight.dtype in EIGHT_BITS and in_memory and in_pairs


@functools.cache
def _pairs(dtype: torch.dtype) -> torch.Tensor:
    """Return every pair of values as float32, each pair as one integer, in the order of its bits."""
    with torch.inference_mode(False):
        every = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16).view(dtype)
        return every.float().view(torch.int64)
