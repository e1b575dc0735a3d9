"""A weight in a wider dtype than it is in: converted when somebody asks for its values, and not before."""

from __future__ import annotations

import torch

from .file_tensor import FileTensor
from .nowhere import IS_KNOWN, take_memory
from .resting import Place, rest_of
from .widening import widened


class _Promise(Place):
    """Where a promised weight comes from.

    Args:
        weight: the weight as it is; it may itself rest in a file.
        dtype: what it becomes; one with all of its values.
    """

    def __init__(self, weight: torch.Tensor, dtype: torch.dtype) -> None:
        super().__init__(FileTensor("", weight.dtype, tuple(weight.shape), 0, weight.nbytes, dtype))
        self._weight = weight

    def read_into(self, target: torch.Tensor) -> None:
        """Convert the weight into a contiguous CPU tensor of the wider dtype and its shape."""
        rest = rest_of(self._weight)
        there = self._weight if rest is None else rest.read()
        target.copy_(widened(there.cpu().contiguous(), self.stored.used))


def promised(weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a weight in another dtype that has all of its values: the same bits as `weight.to(dtype)`, on the CPU."""
    if not IS_KNOWN:
        return weight.to(dtype)
    with torch.inference_mode(False):
        promise = torch.empty(weight.shape, dtype=dtype)
    take_memory(promise)
    return _Promise(weight, dtype).join(promise)
