"""Values of a file in a wider dtype: the same numbers, bit for bit as torch converts them, on the CPU.

Torch converts eight-bit floats one by one, and half precision several times faster. With four bits of exponent, such a
float has the same bits as one of half precision that is 256 times smaller, but for the place of the sign. Else, two
neighbours together have 65536 values, so that a table of all pairs fits into the CPU's cache. Either is done in
stretches that fit there too, and is as fast as converting half precision.
"""

from __future__ import annotations

import functools

import torch

EIGHT_BITS = (torch.float8_e4m3fn, torch.float8_e5m2)

_WITHOUT_LOSS = {
    *((narrow, wide) for narrow in EIGHT_BITS for wide in (torch.float16, torch.bfloat16, torch.float32)),
    (torch.float16, torch.float32),
    (torch.bfloat16, torch.float32),
}

_STRETCH = 1 << 20
"""Pairs that are converted at once."""

_SHIFTED = 1 << 21
"""Values that are shifted into place at once."""

_ALONE = 1 << 14
"""So few pairs torch does not share out among threads."""


def without_loss(stored: torch.dtype, used: torch.dtype) -> bool:
    """Tell whether every value of one dtype is one of the other dtype."""
    return stored == used or (stored, used) in _WITHOUT_LOSS


def stored_in(used: torch.dtype) -> list[torch.dtype]:
    """Return the dtypes that a weight may have been converted from without loss; its own first."""
    return [used, *sorted((narrow for narrow, wide in _WITHOUT_LOSS if wide == used), key=str)]


def widened(weight: torch.Tensor, dtype: torch.dtype, into: torch.Tensor | None = None) -> torch.Tensor:
    """Return a contiguous weight as another dtype that has all of its values: the same bits as `weight.to(dtype)`.

    Args:
        weight: the weight.
        dtype: the other dtype.
        into: what is written to and returned; contiguous, of that dtype and the weight's shape.
    """
    wide = torch.empty(weight.shape, dtype=dtype) if into is None else into
    _widen(weight.detach().view(-1), wide.view(-1))
    return wide


def widen_in_place(
    data: memoryview, stored: torch.dtype, used: torch.dtype, *, in_thread: bool = False
) -> None:
    """Widen values that lie at the end of some memory, so that they fill all of it.

    What is written never reaches what has not been read yet.

    Args:
        data: the memory.
        stored: the dtype of the values.
        used: the dtype that they get.
        in_thread: whether the caller is one of several threads that do so; each is then to need no more than itself.
    """
    memory = torch.frombuffer(data, dtype=torch.uint8)
    wide = memory.view(used)
    narrow = memory[-wide.numel() * stored.itemsize :].view(stored)
    step = 2 * (_ALONE if in_thread else _STRETCH)
    for start in range(0, wide.numel(), step):
        some = slice(start, start + step)
        _widen(narrow[some].clone(), wide[some])


def _widen(narrow: torch.Tensor, wide: torch.Tensor) -> None:
    if (narrow.dtype, wide.dtype) == (torch.float8_e4m3fn, torch.float32):
        _shift(narrow, wide)
        return
    count = narrow.numel()
    paired = count % 2 == 0 and narrow.storage_offset() % 2 == 0 and wide.storage_offset() % 2 == 0
    if narrow.dtype not in EIGHT_BITS or not paired:
        wide.copy_(narrow)
        return
    table = _pairs(narrow.dtype, wide.dtype)
    flat, out = narrow.view(torch.uint16), wide.view(table.dtype)
    for start in range(0, count // 2, _STRETCH):
        indices = flat[start : start + _STRETCH].to(torch.int32)
        torch.index_select(table, 0, indices, out=out[start : start + _STRETCH])


def _shift(narrow: torch.Tensor, wide: torch.Tensor) -> None:
    """Bring exponents and signs to where half precision has them, which torch converts, and make up for the rest."""
    half = torch.empty(min(_SHIFTED, narrow.numel()), dtype=torch.int16)
    for start in range(0, narrow.numel(), _SHIFTED):
        some, out = narrow[start : start + _SHIFTED], wide[start : start + _SHIFTED]
        bits = some.view(torch.int8)
        if (bits & 0x7F).amax() == 0x7F:  # not a number: the one value whose bits mean another thing
            out.copy_(some)
            continue
        placed = half[: some.numel()].copy_(bits).bitwise_left_shift_(7).bitwise_and_(~0x4000)
        out.copy_(placed.view(torch.float16)).mul_(256)


@functools.cache
def _pairs(narrow: torch.dtype, wide: torch.dtype) -> torch.Tensor:
    """Return every pair of values in the wide dtype, each pair as one integer, in the order of its bits."""
    with torch.inference_mode(False):
        every = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16).view(narrow)
        return every.to(wide).view(torch.int64 if wide.itemsize == 4 else torch.int32)
