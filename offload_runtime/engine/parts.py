"""Parts: the plain tensors that a weight is made of. A plain weight is its own only part.

A quantised weight is a tensor subclass: its values, its scales and zero points are tensors inside it, which
`__tensor_flatten__` names and `__tensor_unflatten__` makes the same weight of again (torch's protocol for wrapper
subclasses). Or it is bytes that pretend another shape, with what it takes to read them as attributes (GGUF). Either
way its parts are moved like any other tensor, and the weight is put together again around the copies: nothing is
converted on the way.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Iterable, Iterator
from typing import Any

import torch
from torch import nn

from .resting import Resting

PLAIN = (nn.Parameter, torch.Tensor, Resting)
"""Classes of weights that have no parts but themselves."""

_TRAVELS_BESIDE = frozenset({"patches"})
"""What GGUF loaders note on a weight and bring to the device themselves."""

_SIMPLE = (type(None), bool, int, float, str, bytes, torch.dtype, torch.device, torch.layout, enum.Enum, type)

_works: dict[type, bool] = {}
"""Class → whether the first weight of it could be put together again."""


def parts_of(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the tensors that have a weight's bytes, always in the same order."""
    if type(tensor) in PLAIN:
        return (tensor,)
    if not is_wrapper(tensor):
        return (tensor,)
    names, _ = _flattened(tensor)
    return tuple(part for name in names for part in parts_of(getattr(tensor, name)))


def kind_of(tensor: torch.Tensor) -> Any:
    """Return the class of a weight; that which it had before, while parts of it rest in a file."""
    return getattr(type(tensor), "guards", type(tensor))


def distinct_parts(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Return the parts of some weights, each once."""
    return list({id(part): part for tensor in tensors for part in parts_of(tensor)}.values())


def is_opaque(part: torch.Tensor) -> bool:
    """Tell whether a part is of a class that answers for itself and does not say where its bytes are."""
    return kind_of(part).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__


def bytes_as_stored(part: torch.Tensor) -> torch.Tensor:
    """Return a part as a plain tensor of the shape and dtype that its bytes have."""
    if type(part) in PLAIN:
        return part
    with torch._C.DisableTorchFunctionSubclass():
        return part.as_subclass(torch.Tensor)


def why_whole(tensor: torch.Tensor) -> str | None:
    """Return why a weight cannot be taken apart and put together again, or None when it can."""
    kind = kind_of(tensor)
    if kind in PLAIN:
        return None
    if is_wrapper(tensor):
        if kind not in _works:
            _works[kind] = _comes_back(tensor)
        return None if _works[kind] else f"{kind.__name__} is not the same again when it is put together"
    if is_opaque(tensor):
        return f"{kind.__name__} is a tensor subclass that does not say what it is made of"
    for name, value in tensor.__dict__.items():
        if name not in _TRAVELS_BESIDE and _frozen(value) is None:
            return f"{kind.__name__} is a tensor subclass whose `{name}` may be part of the weight"
    return None


def assemble(like: torch.Tensor, parts: Iterator[torch.Tensor]) -> torch.Tensor:
    """Put a weight together.

    Args:
        like: what it shall be like in all but its bytes.
        parts: its bytes, in the order of `parts_of`; as many as that has are taken.
    """
    kind = kind_of(like)
    if kind in PLAIN:
        return next(parts)
    whole: torch.Tensor
    if is_wrapper(like):
        names, context = _flattened(like)
        inner = {name: assemble(getattr(like, name), parts) for name in names}
        whole = kind.__tensor_unflatten__(inner, context, like.shape, like.stride())
    else:
        whole = next(parts).as_subclass(kind)
        whole.__dict__.update(like.__dict__)
    # Not by `nn.Parameter()`, which detaches: some classes copy their scales then.
    if isinstance(like, nn.Parameter):
        whole._is_param = True
    return whole


def form_of(tensor: torch.Tensor) -> Hashable | None:
    """Return what two weights have in common that differ in their bytes only; None where that cannot be told."""
    kind = kind_of(tensor)
    if kind in PLAIN:
        return tensor.dtype, tensor.shape, tensor.stride()
    if not is_wrapper(tensor):
        return None
    names, context = _flattened(tensor)
    inner, around = [form_of(getattr(tensor, name)) for name in names], _frozen(context)
    return None if around is None or None in inner else (kind, tuple(names), tuple(inner), around)


def is_wrapper(tensor: torch.Tensor) -> bool:
    """Tell whether a weight says what it is made of."""
    return hasattr(type(tensor), "__tensor_flatten__")


def _flattened(tensor: Any) -> tuple[list[str], Any]:
    names, context = tensor.__tensor_flatten__()
    return names, context


def _comes_back(tensor: torch.Tensor) -> bool:
    parts = parts_of(tensor)
    try:
        twin = assemble(tensor, iter(parts))
        return (
            type(twin) is kind_of(tensor)
            and (twin.shape, twin.dtype, twin.device) == (tensor.shape, tensor.dtype, tensor.device)
            and isinstance(twin, nn.Parameter) == isinstance(tensor, nn.Parameter)
            and list(map(id, parts_of(twin))) == list(map(id, parts))
        )
    except Exception:  # whatever a class of others raises
        return False


def _frozen(value: Any) -> Hashable | None:
    """Return a hashable twin of a simple value, or None where there is more to it, such as a tensor."""
    if isinstance(value, _SIMPLE):
        return type(value), value
    if isinstance(value, dict):
        items = [(key, _frozen(item)) for key, item in value.items()]
        return None if any(item is None for _, item in items) else (type(value), tuple(items))
    if isinstance(value, (list, tuple)):
        found = [_frozen(item) for item in value]
        return None if None in found else (type(value), tuple(found))
    return None
