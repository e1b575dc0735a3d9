"""Find the layers of a model: repeated lists whose elements are really called.

Which element is called differs by family: a decoder's `up[i]` is a bare container that nobody calls, and a
UNet walks its `TimestepEmbedSequential` with a function. So a unit is the first module on the way down that
is called. `docs/coverage.md` says what is found in which family; the test that writes it runs them all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import nn
from torch.nn.modules.conv import _ConvNd

from ..engine import Layer, Stack
from ..engine.stacks import stack_layers, why_left
from .loose import why_only_whole
from .record import record_of

_WALKED_BY_A_FUNCTION = frozenset({"TimestepEmbedSequential"})
"""Containers that have a `forward` nobody calls: their children are called one by one instead."""


def find_stacks(model: nn.Module, *, paged: bool = False) -> tuple[Stack, ...]:
    """Return the stacks of a model in registration order; empty when it is better left alone.

    A stack has at least two layers with weights, and not only single operations: two `Linear` in a row are an
    MLP, which is too small to be worth moving on its own. What lies beside the stacks is ComfyUI's to bring to
    the device, operation by operation; an operation that it cannot bring is a stack of its own. A layer with a
    weight that cannot be taken apart is ComfyUI's, whole.

    Args:
        model: the model.
        paged: whether ComfyUI pages its weights in, so that nobody has to take anything apart.
    """
    if paged:
        return _repeated(model)
    stacks = _takeable(_repeated(model))
    if not stacks:
        return ()
    stacks += tuple(_beyond_comfyui(model, stacks))
    return () if _why_only_whole(model, stacks) else stacks


def why_left_alone(model: nn.Module) -> str | None:
    """Return why a model has no stacks, as the end of a sentence, or None when it has."""
    repeated = _repeated(model)
    if not repeated:
        return "no repeated layers were found in it"
    stacks = _takeable(repeated)
    if not stacks:
        return f"{why_left(next(stack_layers(repeated)))}, and so it is with all its layers"
    stacks += tuple(_beyond_comfyui(model, stacks))
    return _why_only_whole(model, stacks)


def layers_left(model: nn.Module) -> list[Layer]:
    """Return the layers that are ComfyUI's because one of their weights cannot be taken apart."""
    return [layer for layer in stack_layers(_repeated(model)) if why_left(layer) is not None]


def _repeated(model: nn.Module) -> tuple[Stack, ...]:
    return tuple(stack for name, child in model.named_children() for stack in _stacks_below(name, child))


def _why_only_whole(model: nn.Module, stacks: Sequence[Stack]) -> str | None:
    return record_of(model).failure or why_only_whole(model, list(stack_layers(stacks)))


def _takeable(stacks: Sequence[Stack]) -> tuple[Stack, ...]:
    kept = (
        Stack(stack.name, tuple(layer for layer in stack.layers if why_left(layer) is None))
        for stack in stacks
    )
    return tuple(stack for stack in kept if stack.layers)


def _beyond_comfyui(model: nn.Module, stacks: Sequence[Stack]) -> Iterator[Stack]:
    """Yield the operations beside the stacks that would find their weights on the host.

    ComfyUI's partial loading casts the weights of its own operations, one by one, but looks at leaf modules
    only; other modules cast their parameters themselves. torch's own do not, except for tables, which are
    looked up on the host, or stay with what is loose.
    """
    done = {module for layer in stack_layers(stacks) for module in layer.module.modules()}
    for name, module in model.named_modules():
        if module in done or not any(True for _ in module.parameters(recurse=False)):
            continue
        has_parts = any(True for child in module.children() for _ in child.parameters())
        if (hasattr(module, "comfy_cast_weights") and has_parts) or (
            _is_torchs_own(module) and not (isinstance(module, nn.Embedding) or _is_container(module))
        ):
            done.update(module.modules())
            layer = Layer(name, module)
            if why_left(layer) is None:
                yield Stack(name, (layer,))


def _is_torchs_own(module: nn.Module) -> bool:
    """Tell whether a module knows nothing of ComfyUI, and so uses its tensors where they are."""
    return type(module).__module__.startswith("torch.")


def _stacks_below(name: str, module: nn.Module) -> Iterator[Stack]:
    if _is_container(module):
        layers = tuple(_units(name, module))
        if _are_worth_moving(layers) and not (_is_plain(module) and _only_groups(module, layers)):
            yield Stack(name, layers)
            return
    for child_name, child in module.named_children():
        yield from _stacks_below(f"{name}.{child_name}", child)


def _are_worth_moving(layers: Sequence[Layer]) -> bool:
    return len(layers) > 1 and any(list(layer.module.children()) for layer in layers)


def _only_groups(container: nn.Module, layers: Sequence[Layer]) -> bool:
    """Tell a container that is there for the names of the weights from one of blocks side by side."""
    return len(list(container.children())) == 1 or _hold_longer_stacks(layers)


def _hold_longer_stacks(layers: Sequence[Layer]) -> bool:
    """Tell an encoder and a decoder side by side, each with a stack of its own, from blocks side by side."""
    inside = (stack for layer in layers for stack in _stacks_below(layer.name, layer.module))
    return any(len(stack.layers) > len(layers) for stack in inside)


def _units(name: str, container: nn.Module) -> Iterator[Layer]:
    """Yield the called units of a container, looking through containers inside it."""
    for child_name, child in container.named_children():
        path = f"{name}.{child_name}"
        if (_is_container(child) and not isinstance(child, nn.Sequential)) or _is_walked(child):
            yield from _units(path, child)
        elif next(child.parameters(), None) is not None:
            yield Layer(path, child, tuple(_single_operations(child)))


def _single_operations(layer: nn.Module) -> Iterator[nn.Module]:
    """Yield the operations of a layer that ComfyUI itself brings to the device one by one, when they are called.

    Only maps and convolutions, which hold nearly all bytes. Several families hand the weights of their norms, or of
    a bank of experts, to a function instead of calling them.
    """
    for module in layer.modules():
        if (
            hasattr(module, "comfy_cast_weights")
            and isinstance(module, nn.Linear | _ConvNd)
            and module is not layer
        ):
            yield module


def _is_container(module: nn.Module) -> bool:
    return isinstance(module, nn.Sequential) or type(module).forward is nn.Module.forward


def _is_plain(module: nn.Module) -> bool:
    """Tell whether a container is none of torch's lists: it groups parts, which need not repeat."""
    return not isinstance(module, nn.Sequential | nn.ModuleList | nn.ModuleDict)


def _is_walked(module: nn.Module) -> bool:
    return type(module).__name__ in _WALKED_BY_A_FUNCTION
