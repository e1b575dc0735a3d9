"""What only ComfyUI's full load brings to the device, and what not even we could bring for it.

A full load moves a model as one. A partial load moves leaf modules that hold weights, and leaves it to ComfyUI's
own operations to bring their `weight` and `bias` when they are called. All else stays where it is then: buffers,
parameters of modules that have parts, and other modules that do not fit. While the layers of a model are streamed,
these are brought to the device with the load.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from ..engine import Layer, parameter_bytes
from ..engine.loose import is_plain
from ..engine.slots import packed_bytes
from .embedding import input_tables

ENOUGH = 64 << 20
"""Bytes of loose tensors that are brought however small the model is."""

_GRAIN = 512
"""torch gives out device memory in multiples of so many bytes."""

SHARE = 8
"""Of a larger model, one part in so many may be loose: what is brought stays, and is not streamed."""


class Loose(NamedTuple):
    """One tensor that a partial load would leave on the host."""

    name: str
    entries: dict[str, Any]
    key: str

    @property
    def tensor(self) -> torch.Tensor:
        """The tensor that is there now."""
        tensor: torch.Tensor = self.entries[self.key]
        return tensor


def loose_tensors(model: nn.Module, layers: Iterable[Layer]) -> Iterator[Loose]:
    """Yield what is loose in a model when some of its layers are streamed."""
    streamed = {id(part._parameters) for layer in layers for part in layer.module.modules()}
    tables = set(input_tables(model))
    for name, module in model.named_modules():
        if id(module._parameters) not in streamed and not (
            isinstance(module, nn.Embedding) and module in tables
        ):
            brought = ("weight", "bias") if _is_comfyuis_operation(module) else ()
            for key, parameter in module._parameters.items():
                if parameter is not None and key not in brought:
                    yield Loose(f"{name}.{key}".lstrip("."), module._parameters, key)
        for key, buffer in module._buffers.items():
            if buffer is not None:
                yield Loose(f"{name}.{key}".lstrip("."), module._buffers, key)


def loose_bytes(model: nn.Module, layers: Iterable[Layer]) -> int:
    """Return the room that what is loose takes on the device, each tensor counted once."""
    size = packed_bytes(
        list({id(loose.tensor): loose.tensor for loose in loose_tensors(model, layers)}.values())
    )
    return -(-size // _GRAIN) * _GRAIN


def loose_weights(model: nn.Module, layers: Iterable[Layer]) -> int:
    """Return how many bytes of weights are loose, without buffers."""
    loose = {id(loose.tensor): loose.tensor for loose in loose_tensors(model, layers)}
    return sum(tensor.nbytes for tensor in loose.values() if isinstance(tensor, nn.Parameter))


def why_only_whole(model: nn.Module, layers: Iterable[Layer]) -> str | None:
    """Return why only ComfyUI can load a model, as the end of a sentence, or None when we can do our part."""
    weights = {id(parameter) for parameter in model.parameters()}
    for name, module in model.named_modules():
        if is_parametrized(module) or any(map(_is_torchs_recipe, module._forward_pre_hooks.values())):
            return f"`{name}` computes its weights out of others, which ComfyUI only loads as a whole"
        if type(module)._apply is not nn.Module._apply and not hasattr(module, "comfy_cast_weights"):
            return f"`{name}` is moved in a way of its own, which ComfyUI only takes when it loads the whole model"
        if _refers_to(module, weights):
            return f"`{name}` refers to weights from outside of the list of its weights"
    found = list(loose_tensors(model, layers))
    for loose in found:
        if loose.tensor.device.type == "cpu" and not is_plain(loose.tensor):
            kind = type(loose.tensor).__name__
            return f"`{loose.name}` only moves with the whole model: {kind} is a tensor subclass"
    size = loose_bytes(model, layers)
    if size > max(ENOUGH, parameter_bytes(model) // SHARE):
        largest = max(found, key=lambda loose: loose.tensor.nbytes)
        return f"too much of it only moves with the whole model, such as `{largest.name}`"
    return None


def _is_comfyuis_operation(module: nn.Module) -> bool:
    """Tell whether it brings its own weights when it is called. ComfyUI asks that of leaf modules only."""
    has_parts = any(True for child in module.children() for _ in child.parameters())
    return hasattr(module, "comfy_cast_weights") and not has_parts


def _is_torchs_recipe(hook: object) -> bool:
    """Tell `weight_norm` and `spectral_norm` in the form in which a hook makes the weight."""
    return type(hook).__module__.startswith("torch.nn.utils.")


def _refers_to(module: nn.Module, weights: set[int]) -> bool:
    """Tell whether an attribute names a weight, which would go on naming the one on the host."""
    for name, value in vars(module).items():
        if name in ("_parameters", "_buffers", "_modules"):
            continue
        held = value.values() if isinstance(value, dict) else value
        items = held if isinstance(held, list | tuple | set) else (held,)
        if any(isinstance(item, nn.Parameter) and id(item) in weights for item in items):
            return True
    return False
