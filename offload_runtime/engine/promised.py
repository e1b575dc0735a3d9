"""A weight that comes about when somebody asks for its values, and not before."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial

import torch

from .file_tensor import FileTensor
from .nowhere import IS_KNOWN, take_memory
from .resting import Place, rest_of
from .widening import widened

_with_dispatch = getattr(torch._C, "_EnableTorchFunction", contextlib.nullcontext)


class _Promise(Place):
    """Where a promised weight comes from.

    Args:
        shape: its shape.
        dtype: its dtype.
        make: returns its values, in memory and in that dtype.
    """

    def __init__(self, shape: torch.Size, dtype: torch.dtype, make: Callable[[], torch.Tensor]) -> None:
        # As if a byte of a file became each of its values.
        super().__init__(FileTensor("", torch.uint8, tuple(shape), 0, shape.numel(), dtype))
        self._make = make

    def read_into(self, target: torch.Tensor) -> None:
        """Make it, in a contiguous CPU tensor of its dtype and shape."""
        with _with_dispatch():  # whoever asks has switched it off, and nobody can use what rests without it
            target.copy_(self._make())


def promise(shape: torch.Size, dtype: torch.dtype, make: Callable[[], torch.Tensor]) -> torch.Tensor:
    """Return a floating-point weight that is made whenever its values are asked for.

    Args:
        shape: its shape.
        dtype: its dtype.
        make: returns its values, in memory and in that dtype.
    """
    if not (IS_KNOWN and hasattr(torch._C, "_EnableTorchFunction")):
        return make()
    return _join(shape, dtype, make)


def _join(shape: torch.Size, dtype: torch.dtype, make: Callable[[], torch.Tensor]) -> torch.Tensor:
    with torch.inference_mode(False):
        empty = torch.empty(shape, dtype=dtype)
    take_memory(empty)
    return _Promise(shape, dtype, make).join(empty)


def promised(weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a weight in a wider dtype that has all of its values: the same bits as `weight.to(dtype)`, on the CPU.

    Args:
        weight: the weight as it is; it may itself rest in a file.
        dtype: what it becomes.
    """
    if not IS_KNOWN:
        return weight.to(dtype)
    return _join(weight.shape, dtype, partial(_widened, weight, dtype))


def _widened(weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    rest = rest_of(weight)
    there = weight if rest is None else rest.read()
    return widened(there.cpu().contiguous(), dtype)
