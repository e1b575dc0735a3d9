"""Find the layers of a model: repeated lists whose elements are really called.

Which element is called differs by family: a decoder's `up[i]` is a bare container that nobody calls, and a
UNet walks its `TimestepEmbedSequential` with a function. So a unit is the first module on the way down that
is called.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from ..engine import Layer, Stack

_WALKED_BY_A_FUNCTION = frozenset({"TimestepEmbedSequential"})
"""Containers that have a `forward` nobody calls: their children are called one by one instead."""


def find_stacks(model: nn.Module) -> tuple[Stack, ...]:
    """Return the stacks of a model in registration order; empty when it has no repeated layers.

    A stack has at least two layers with weights, and not only single operations: two `Linear` in a row are an
    MLP, which is too small to be worth moving on its own.
    """
    return tuple(stack for name, child in model.named_children() for stack in _stacks_below(name, child))


def _stacks_below(name: str, module: nn.Module) -> Iterator[Stack]:
    if not _is_container(module):
        for child_name, child in module.named_children():
            yield from _stacks_below(f"{name}.{child_name}", child)
        return
    layers = tuple(_units(name, module))
    if len(layers) > 1 and any(list(layer.module.children()) for layer in layers):
        yield Stack(name, layers)


def _units(name: str, container: nn.Module) -> Iterator[Layer]:
    """Yield the called units of a container, looking through containers inside it."""
    for child_name, child in container.named_children():
        path = f"{name}.{child_name}"
        if (_is_container(child) and not isinstance(child, nn.Sequential)) or _is_walked(child):
            yield from _units(path, child)
        elif next(child.parameters(), None) is not None:
            yield Layer(path, child)


def _is_container(module: nn.Module) -> bool:
    return isinstance(module, nn.Sequential) or type(module).forward is nn.Module.forward


def _is_walked(module: nn.Module) -> bool:
    return type(module).__name__ in _WALKED_BY_A_FUNCTION
