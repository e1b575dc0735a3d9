"""Load with one of ComfyUI's own loaders, and leave the weights where it reads them: in the model file.

A loader makes a model of empty weights, maps the file, and copies every weight out of the mapping, into the dtype that
the model computes from. While such a load runs, a weight is given the memory it would be copied from instead. Torch
has a place to hear of a copy (`TorchFunctionMode`), for one thread and for as long as it takes, so ComfyUI's loader
runs as it is, whatever its version, and all that it decides is its own: the kind of model, its dtypes and operations.

Nothing is computed from the mapping: whoever reads a page of a file that was cut off is killed. What does not rest in
the file for good (`MappedWeights`) is copied out of it before the load is over (`bring_beside`, `settle`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from ..engine import Stack
from ..engine.stacks import stack_layers
from ..engine.widening import without_loss
from .embedding import input_tables
from .kept_dtype import keep_dtype, may_keep


class _Weight(NamedTuple):
    """A weight that is still where it was read.

    Attributes:
        parameter: the weight.
        dtype: the dtype that ComfyUI would have copied it into.
        address: where it was read.
    """

    parameter: nn.Parameter
    dtype: torch.dtype
    address: int

    @property
    def is_there(self) -> bool:
        return type(self.parameter) is nn.Parameter and self.parameter.data_ptr() == self.address

    def bring(self, dtype: torch.dtype) -> None:
        """Copy it into ordinary memory."""
        self.parameter.data = self.parameter.data.to(dtype, copy=True)


class AsStored(TorchFunctionMode):
    """Context manager: while it is entered, weights that this thread loads stay where they are read."""

    def __init__(self) -> None:
        super().__init__()
        self._weights: dict[int, _Weight] = {}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Give a weight the memory that it would be copied from; do everything else as it is."""
        if func is torch.Tensor.copy_ and _is_load(*args):
            weight, stored, *_ = args  # a pack that wraps the method may say, too, that nobody waits
            dtype = weight.dtype
            weight.data = stored
            self._weights[id(weight)] = _Weight(weight, dtype, stored.data_ptr())
            return weight
        return func(*args, **(kwargs or {}))

    def bring_beside(self, model: nn.Module, stacks: Sequence[Stack]) -> None:
        """Copy everything into memory that is not in a layer or a token table: it is used from where it is.

        What stays may stay in the dtype of the file, where converting it at each use gives the same bits.
        """
        movable = {part for layer in stack_layers(stacks) for part in layer.module.modules()}
        movable |= set(input_tables(model))
        keeping = movable & may_keep(model)
        for module, name, weight in self._of(model):
            converted = weight.parameter.dtype != weight.dtype
            if module not in movable or (converted and (module not in keeping or name != "weight")):
                weight.bring(weight.dtype)
            elif converted:
                keep_dtype(module, weight.dtype)

    def settle(self, model: nn.Module, *, converted: bool) -> None:
        """Copy what is left, and does not rest in the file, into memory.

        Args:
            model: the model, placed.
            converted: whether into ComfyUI's dtype, as a model that ComfyUI computes from as it is.
        """
        for module, _, weight in self._of(model):
            if converted and weight.parameter.dtype != weight.dtype:
                keep_dtype(module, None)
            weight.bring(weight.dtype if converted else weight.parameter.dtype)

    def _of(self, model: nn.Module) -> Iterable[tuple[nn.Module, str, _Weight]]:
        for module in model.modules():
            for name, parameter in module.named_parameters(recurse=False):
                weight = self._weights.get(id(parameter))
                if weight is not None and weight.is_there:
                    yield module, name, weight


def _is_load(target: Any, source: Any = None, *_: Any) -> bool:
    """Tell whether a copy fills a weight from a tensor of a file, without loss."""
    return (
        type(target) is nn.Parameter
        and type(source) is torch.Tensor
        and target.is_cpu
        and source.is_cpu
        and source.is_contiguous()
        and target.shape == source.shape
        and source.numel() > 0
        and without_loss(source.dtype, target.dtype)
    )
