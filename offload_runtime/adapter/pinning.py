"""Pinned memory, in ComfyUI's own account: exact sizes, its limit, its command-line flag."""

from __future__ import annotations

import weakref

import comfy.model_management as mm
import torch
from torch import nn

from ..engine import PackedWeights

_of_model: weakref.WeakKeyDictionary[nn.Module, PackedWeights] = weakref.WeakKeyDictionary()


def packed_weights(model: nn.Module) -> PackedWeights:
    """Return the one record of a model's packed weights, shared by everybody who uses that model."""
    return _of_model.setdefault(model, PackedWeights(_pin, mm.unpin_memory))


def _pin(size: int) -> torch.Tensor | None:
    """Return a pinned block, or None when ComfyUI does not pin on this device, or has no room left."""
    with torch.inference_mode(False):
        block = nn.Parameter(
            torch.empty(size, dtype=torch.uint8), requires_grad=False
        )  # the type that it pins
    return block if mm.pin_memory(block) else None
