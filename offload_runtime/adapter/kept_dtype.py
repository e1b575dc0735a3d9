"""Operations of ComfyUI whose weight stays in the dtype of its file, and is converted each time it is used.

The file's values are the same numbers in the dtype that ComfyUI would load them into, so what is computed has the same
bits. A weight that is patched is another matter: the sum is rounded, and it is rounded to the dtype that ComfyUI would
have the weight in, and then stays in memory in that one.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import comfy.float
import comfy.ops
import torch
from torch import nn

from ..engine.promised import promised
from ..engine.resting import Resting
from ..engine.scratch import scratch
from ..engine.widening import EIGHT_BITS, widened

_KINDS = ("Linear", "Conv2d", "Embedding")
_PLAIN = {
    getattr(ops, kind) for ops in (comfy.ops.disable_weight_init, comfy.ops.manual_cast) for kind in _KINDS
}
"""The classes of ComfyUI that only convert their weight and compute; others look at its dtype first."""


def may_keep(model: nn.Module) -> set[nn.Module]:
    """Return the modules of a model whose weight may be in another dtype than ComfyUI would load it into."""
    asked = {part for module in model.modules() if _asks(_kind(module)) for part in module.modules()}
    return {module for module in model.modules() if type(module) in _PLAIN and _told(module)} - asked


def _told(module: nn.Module) -> bool:
    """Tell whether ComfyUI treats a module's weight as it would in the dtype that it loads it into."""
    # A table in half precision is patched in half precision, one in another dtype in that of the result.
    return not isinstance(module, nn.Embedding) or module.weight.dtype in EIGHT_BITS


def _kind(module: nn.Module) -> Any:
    return type(module)


@functools.cache
def _asks(kind: Any) -> bool:
    """Tell whether code of a class computes in whatever dtype some weight below it has."""
    if kind in _PLAIN or kind.__module__.startswith("torch."):
        return False
    try:
        return ".weight.dtype" in inspect.getsource(kind)
    except (OSError, TypeError):
        return True  # nobody can see


def keep_dtype(module: nn.Module, dtype: torch.dtype | None) -> None:
    """Let a module convert its weight at each use; with None, let it be as ComfyUI made it.

    Args:
        module: one whose weight may be in another dtype.
        dtype: what ComfyUI would have loaded the weight into.
    """
    if dtype is not None:
        module.__class__ = _converting(_kind(module))
        module.loaded_dtype = dtype  # type: ignore[assignment]
    elif isinstance(module, _Converts):
        module.__class__ = module.made_as
        del module.loaded_dtype


def loaded_dtype(module: nn.Module, kind: str, weight: torch.Tensor) -> torch.dtype:
    """Return the dtype that ComfyUI would have loaded a weight of a module into.

    Args:
        module: the module.
        kind: what the weight is called there.
        weight: the weight.
    """
    return module.loaded_dtype if isinstance(module, _Converts) and kind == "weight" else weight.dtype


def keeps_dtype(model: nn.Module) -> bool:
    """Tell whether any weight of a model stays in the dtype of its file."""
    return any(isinstance(module, _Converts) for module in model.modules())


class _Converts:
    """What such an operation does otherwise than the class that ComfyUI made it of.

    Attributes:
        made_as: that class.
        loaded_dtype: the dtype that ComfyUI would have loaded the weight into.
    """

    comfy_cast_weights = True
    made_as: Any
    loaded_dtype: torch.dtype
    weight: nn.Parameter

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        """Give whoever asks for all weights, as the nodes that save do, the dtype that ComfyUI would have."""
        super()._save_to_state_dict(destination, prefix, keep_vars)  # type: ignore[misc]
        if not keep_vars and self.weight.dtype != self.loaded_dtype:
            destination[prefix + "weight"] = promised(self.weight, self.loaded_dtype)

    def set_weight(
        self,
        weight: torch.Tensor,
        inplace_update: bool | None = None,
        seed: int = 0,
        return_weight: bool = False,
    ) -> torch.Tensor | None:
        """Take a patched weight, as ComfyUI's patcher hands it to an operation that asks for it.

        A patch that is put on at each use is not rounded; it comes without a word on where the result goes.
        """
        if return_weight and inplace_update is None:
            return weight
        rounded: torch.Tensor = comfy.float.stochastic_rounding(weight, self.loaded_dtype, seed=seed)
        if return_weight:
            return rounded
        self.weight = nn.Parameter(rounded, requires_grad=False)
        return None


class _Multiplied(_Converts):
    """A matrix."""

    def forward_comfy_cast_weights(self, values: torch.Tensor) -> Any:
        """Multiply by it; on the CPU eight-bit floats are converted in a faster way than ComfyUI has."""
        table: Any = self
        patched = bool(table.weight_function or table.bias_function)
        if patched or values.dtype != torch.float32 or not values.is_cpu or not _in_memory(self.weight):
            return super().forward_comfy_cast_weights(values)  # type: ignore[misc]
        bias = None if table.bias is None else table.bias.to(values.dtype)
        matrix = scratch.tensor(self.weight.shape, torch.float32)
        return nn.functional.linear(values, widened(self.weight, torch.float32, into=matrix), bias)


class _Looked(_Converts):
    """A token table: only the rows that are looked up are converted."""

    def forward_comfy_cast_weights(self, ids: torch.Tensor, out_dtype: torch.dtype | None = None) -> Any:
        """Look up `ids` (any shape, integer)."""
        table: Any = self
        patched = bool(table.weight_function)
        if patched or self.weight.device != ids.device:
            # ComfyUI patches a table in the dtype that it is in.
            rows = super().forward_comfy_cast_weights(ids, out_dtype=self.loaded_dtype)  # type: ignore[misc]
        else:
            rows = nn.functional.embedding(
                ids, self.weight, table.padding_idx, table.max_norm, table.norm_type, table.scale_grad_by_freq
            )
        wanted = out_dtype if patched or self.made_as.comfy_cast_weights else None
        return rows.to(wanted or self.loaded_dtype)


def _in_memory(weight: torch.Tensor) -> bool:
    """Tell whether a weight is of eight-bit floats that can be converted where they are."""
    there = weight.is_cpu and weight.is_contiguous() and not isinstance(weight, Resting)
    return there and weight.dtype in EIGHT_BITS


@functools.cache
def _converting(kind: Any) -> Any:
    bases = {nn.Embedding: _Looked, nn.Linear: _Multiplied}
    base = next((ours for theirs, ours in bases.items() if issubclass(kind, theirs)), _Converts)
    return type(kind.__name__, (base, kind), {"made_as": kind})
