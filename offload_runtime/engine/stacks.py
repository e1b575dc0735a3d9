"""Layers and stacks: what is moved, and how large it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import nn

from .parts import parts_of
from .slots import why_unmovable


@dataclass(frozen=True)
class Layer:
    """One element of a stack, normally the unit of transfer.

    Attributes:
        parts: operations inside it that may be moved on their own: whoever needs their weights calls them.
    """

    name: str
    module: nn.Module
    parts: tuple[nn.Module, ...] = ()

    @property
    def bytes(self) -> int:
        """The size of its weights."""
        return parameter_bytes(self.module)


@dataclass(frozen=True)
class Stack:
    """One repeated list of layers inside a component."""

    name: str
    layers: tuple[Layer, ...]

    @property
    def bytes(self) -> int:
        """The size of the weights of all its layers."""
        return sum(layer.bytes for layer in self.layers)


def tensor_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes that a tensor's data takes, inner tensors of a quantised subclass included.

    `numel() * element_size()` of a quantised wrapper counts the dtype that it pretends to have.
    """
    return sum(part.nbytes for part in parts_of(tensor))


def parameter_bytes(module: nn.Module) -> int:
    """Return the size of a module's parameters, each counted once."""
    return sum(tensor_bytes(parameter) for parameter in module.parameters())


def buffer_bytes(module: nn.Module) -> int:
    """Return the size of a module's buffers."""
    return sum(buffer.nbytes for buffer in module.buffers())


def stack_layers(stacks: Iterable[Stack]) -> Iterator[Layer]:
    """Yield the layers of several stacks in order."""
    for stack in stacks:
        yield from stack.layers


def why_left(layer: Layer) -> str | None:
    """Return why a layer cannot be streamed, or None when it can: one weight that stays behind leaves all of it."""
    for name, parameter in layer.module.named_parameters():
        why = why_unmovable(parameter) if parameter.device.type == "cpu" else None
        if why is not None:
            return f"`{layer.name}.{name}` cannot be taken apart ({why})"
    return None


def is_compiled(layer: Layer) -> bool:
    """Tell whether `torch.compile` made it: that guards its weights, and would compile anew for other ones."""
    return "_orig_mod" in layer.name.split(".") or hasattr(layer.module.forward, "_torchdynamo_orig_callable")
