"""Weights without a patcher: the nodes that use them move them, so that all we can do is to say so."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from ..engine import Stack
from ..policy import OTHERS, format_bytes
from .applied import COMFYUI, GONE, Applied
from .carriers import patcher_of
from .where import bytes_by_place

_MOVED = {
    "control_net": "sampling brings it to the device, and takes it away again",
    "style_model": "ComfyUI keeps it in memory, and computes it on the CPU",
    "photomaker": "ComfyUI keeps it in memory, and copies each weight to the device when it is used",
    "upscale_model": "the node that upscales brings it to the device, and takes it back to memory",
    "face_detection_model": "it is several small models, and ComfyUI brings each to the device when it is used",
}
"""Socket → who moves what has no patcher, as a clause."""


class Unmanaged:
    """A component that nothing can be put on: the object is handed on as it is.

    Args:
        socket: which socket it came in by.
        component: its component name in this workflow.
        value: the object.
        model: its weights.
    """

    def __init__(self, socket: str, component: str, value: Any, model: nn.Module) -> None:
        self.socket, self.component, self.value = socket, component, value
        self.kind = type(model if type(model) is not _Held else value).__name__
        self.model = model

    @property
    def why(self) -> str:
        """Why nothing can be set for it, as a clause."""
        moved = "this pack does not see its weights"
        if next(self.model.parameters(), None) is not None:
            moved = _MOVED.get(self.socket, "the node that uses it moves it")
        return f"{moved}, so nothing can be set for it"

    def backend(self) -> SaysWhy:
        """Return what stands for it in the report."""
        return SaysWhy(self.why, self.model)


class SaysWhy:
    """The backend of what has no patcher. Refers to the weights weakly, as all backends do."""

    def __init__(self, why: str, model: nn.Module) -> None:
        self._why, self._model = why, weakref.ref(model)
        self._unseen = next(model.parameters(), None) is None

    def attach(self, patcher: Any, stacks: Sequence[Stack]) -> None:
        """There is no patcher."""

    def applied(self) -> Applied:
        """Say who moves it, and where it is now."""
        model = self._model()
        if self._unseen:
            return Applied(COMFYUI, self._why)
        if model is None:
            return GONE
        there = [
            f"{format_bytes(count)} {'in memory' if place == 'memory' else f'on {place}'}"
            for place, count in bytes_by_place(model).items()
        ]
        return Applied(COMFYUI, f"{self._why}; now {' and '.join(there)}")


def weights_of(socket: str, value: Any) -> nn.Module | None:
    """Return the weights of an object that has no patcher, as far as they are seen; None where it has one.

    A MODEL, CLIP, VAE or CLIP_VISION has one, or is refused.
    """
    if socket not in OTHERS or patcher_of(socket, value) is not None:
        return None
    if isinstance(value, nn.Module):
        return value
    parts = list(_parts(value))
    if len(parts) == 1 and isinstance(parts[0], nn.Module):
        return parts[0]
    if not parts or type(value).__hash__ is None:
        return _Held(())
    if value not in _held:
        _held[value] = _Held(parts)
    return _held[value]


class _Held(nn.Module):
    """The weights of an object that holds them in several parts."""

    def __init__(self, parts: Sequence[nn.Module | torch.Tensor]) -> None:
        super().__init__()
        self.models = nn.ModuleList(part for part in parts if isinstance(part, nn.Module))
        tensors = (part for part in parts if isinstance(part, torch.Tensor))
        self.tensors = nn.ParameterList(nn.Parameter(tensor, requires_grad=False) for tensor in tensors)


_held: weakref.WeakKeyDictionary[Any, _Held] = weakref.WeakKeyDictionary()
"""Object → its weights: the same for the next loader that it comes to."""


def _parts(value: Any) -> Iterator[nn.Module | torch.Tensor]:
    for attribute in getattr(value, "__dict__", {}).values():
        for part in attribute.values() if isinstance(attribute, dict) else (attribute,):
            if isinstance(part, nn.Module | torch.Tensor):
                yield part
