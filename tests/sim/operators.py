"""What is known about each operator: what it writes, whether it is composite, how many flops it does."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry, sdpa_flop_count

aten = torch.ops.aten

#: The host needs the result of these: it waits for the stream.
_SYNCHRONISING = frozenset(
    {
        aten._local_scalar_dense.default,
        aten.equal.default,
        aten.nonzero.default,
        aten.masked_select.default,
        aten.repeat_interleave.Tensor,
        aten.unique_dim.default,
        aten._unique2.default,
        aten.bincount.default,
    }
)

#: CUDA takes index tensors from the host here.
_TAKES_HOST_INDICES = frozenset({aten.index.Tensor, aten.index_put_.default, aten.index_put.default})

#: These read as much of their first operand as they return, not all of it.
_GATHERS = frozenset({aten.embedding, aten.index, aten.index_select, aten.gather, aten.slice_backward})

#: Aliases that the schema keeps quiet about.
_HIDDEN_VIEWS = frozenset({aten._unsafe_view.default, aten.unsafe_split.Tensor, aten.unsafe_chunk.default})

#: One fused kernel everywhere, so neither taken apart nor charged as its parts.
_ATOMIC = frozenset({aten.scaled_dot_product_attention.default})

_ALLOCATES_ONLY = frozenset(
    {aten.empty, aten.empty_strided, aten.empty_like, aten.new_empty, aten.new_empty_strided}
)


class Operator:
    """The facts of one overload."""

    __slots__ = (
        "allocates_only",
        "composite",
        "flops",
        "gathers",
        "host_indices",
        "name",
        "restrides",
        "synchronises",
        "views",
        "written",
    )

    def __init__(self, func: Any) -> None:
        packet = func.overloadpacket
        schema = func._schema
        self.name = packet.__name__
        self.written = frozenset(
            key
            for position, argument in enumerate(schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
            for key in (position, argument.name)
        )
        returns = [r.alias_info for r in schema.returns]
        self.views = func in _HIDDEN_VIEWS or any(info is not None and not info.is_write for info in returns)
        self.restrides = torch.Tag.inplace_view in func.tags
        self.composite = func not in _ATOMIC and torch._C._dispatch_has_kernel_for_dispatch_key(
            func.name(), "CompositeImplicitAutograd"
        )
        self.synchronises = func in _SYNCHRONISING
        self.host_indices = func in _TAKES_HOST_INDICES
        self.gathers = packet in _GATHERS
        self.allocates_only = packet in _ALLOCATES_ONLY
        self.flops: Callable[..., int] | None = flop_registry.get(packet)
        if packet is aten.scaled_dot_product_attention:
            self.flops = _attention_flops


def _attention_flops(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any) -> int:
    """Batched attention; grouped key heads count as if they were repeated."""
    heads = query.shape[:-2].numel()
    queries, keys = (heads, *query.shape[-2:]), (heads, *key.shape[-2:])
    return sdpa_flop_count((1, *queries), (1, *keys), (1, heads, *value.shape[-2:]))


@cache
def operator(func: Any) -> Operator:
    """The facts of an overload, worked out once."""
    return Operator(func)
