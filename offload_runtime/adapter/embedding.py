"""A text encoder's token embedding table, looked up on the host.

The table is large and only a few rows of it are read. On ComfyUI 0.3.75 the device of its weight even decides
where the whole encode runs, so a table left on the host would silently move the encode to the CPU. While the
encoder is loaded, `get_input_embeddings` therefore answers with a stand-in: the same embedding to whoever looks at
it, but its weight names the compute device, and its rows are looked up where the table is, and sent to where the ids
are. Later versions ask the table only where somebody calls the encoder past `CLIP`, as some packs do.

With dynamic VRAM a table has addresses in a range of pages as well, and ComfyUI would copy all of it there, or
copy all of it on the host when the ids are there. Without those addresses it is looked up as it is.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from .host_weight import HostWeight

_METHOD = "get_input_embeddings"
_PLAIN = (torch.float32, torch.float16, torch.bfloat16)


class HostEmbeddings:
    """The stand-ins of one text encoder, installed and removed with its layers.

    Args:
        model: the encoder.
        device: where it computes.
        on_host: whether tables that ComfyUI pages in are looked up on the host instead, where they can be.
    """

    def __init__(self, model: nn.Module, device: torch.device, *, on_host: bool = True) -> None:
        self._device = device
        self.on_host = on_host
        self._owners = [module for module in model.modules() if _table_of(module) is not None]
        self._shadows: dict[nn.Module, _Shadow] = {}

    def tables(self) -> list[nn.Module]:
        """Return the tables that are looked up on the host, themselves."""
        if not self.on_host:
            return []
        tables = _unique(map(_table_of, self._owners))
        return [table for table in tables if not hasattr(table, "_v") or _stays_on_host(table)]

    def install(self) -> None:
        """Shadow `get_input_embeddings` of every text model."""
        for owner in self._owners:
            owner.__dict__[_METHOD] = self._shadows[owner] = _Shadow(owner, self._device, self.on_host)

    def uninstall(self) -> None:
        """Put back what was there, unless somebody else has shadowed it since."""
        for owner, shadow in self._shadows.items():
            shadow.over = True
            if owner.__dict__.get(_METHOD) is not shadow:
                continue
            del owner.__dict__[_METHOD]
            if shadow.shadowed is not None:
                owner.__dict__[_METHOD] = shadow.shadowed
        self._shadows.clear()


def input_tables(model: nn.Module) -> list[nn.Embedding]:
    """Return the token embedding tables of a model's text models."""
    return _unique(map(_table_of, model.modules()))


def _unique(tables: Iterable[nn.Embedding | None]) -> list[nn.Embedding]:
    return [table for table in dict.fromkeys(tables) if table is not None]


def _table_of(module: nn.Module) -> nn.Embedding | None:
    """Return the table of a text model, or None.

    A class may inherit the method and have no table, and what a vision tower answers with is a convolution.
    """
    method = getattr(type(module), _METHOD, None)
    with contextlib.suppress(NotImplementedError):
        table = method(module) if method is not None else None
        return table if isinstance(table, nn.Embedding) else None
    return None


class _Shadow:
    """What `get_input_embeddings` of a text model is while its encoder is loaded.

    Attributes:
        shadowed: what somebody else had put in its place, or None; never another one of ours.
        over: whether the encoder was unloaded since; who has wrapped this one still asks it.
    """

    def __init__(self, owner: nn.Module, device: torch.device, on_host: bool) -> None:
        there = owner.__dict__.get(_METHOD)
        self.shadowed: Any = there.shadowed if isinstance(there, _Shadow) else there
        self.over = False
        self._owner = weakref.ref(owner)
        self._device = device
        self._on_host = on_host

    def __call__(self) -> Any:
        """Return the embedding, or what stands in for one whose table is not on the compute device."""
        owner = self._owner()
        embedding = self.shadowed() if self.shadowed else getattr(type(owner), _METHOD)(owner)
        if self.over or not isinstance(embedding, nn.Embedding) or embedding.weight.device == self._device:
            return embedding
        twin = copy.copy(embedding)
        twin.__class__ = _kind_of(type(embedding))  # type: ignore[arg-type]
        twin.__dict__.update(_embedding=embedding, _device=self._device, _on_host=self._on_host)
        return twin


@functools.cache
def _kind_of(kind: Any) -> Any:
    return type(kind.__name__, (_OnHost, kind), {})


class _OnHost(nn.Module):
    """What a stand-in does otherwise than the class of its embedding."""

    _embedding: nn.Embedding
    _device: torch.device
    _on_host: bool

    @property
    def weight(self) -> HostWeight:
        """The table, as a tensor on the compute device."""
        return HostWeight(self._embedding.weight, self._device)

    def forward(self, ids: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Look up `ids` (any shape, integer); returns their rows where the ids are."""
        embedding, place = self._embedding, ids.device
        if self._on_host and _stays_on_host(embedding):
            embedding, place = _without_pages(embedding), embedding.weight.device
        rows: torch.Tensor = embedding.forward(ids.to(place), *args, **kwargs)
        # Where core has not placed the table it does not cast it, and leaves out the wish for another dtype.
        return rows.to(ids.device, kwargs.get("out_dtype"))


def _stays_on_host(table: nn.Embedding) -> bool:
    """Tell whether rows can be looked up on the host just as well as where ComfyUI would cast the table: at its input.

    They cannot where they have to be computed from the whole of it: patched, or paged in and quantised or not loaded.
    """
    if any(getattr(table, name, None) for name in ("weight_lowvram_function", "weight_function")):
        return False
    weight = table.weight
    plain = type(weight) is nn.Parameter and weight.dtype in _PLAIN and weight.device.type == "cpu"
    return plain or not hasattr(table, "_v")


def _without_pages(embedding: nn.Embedding) -> nn.Embedding:
    """Return an embedding of the same table that dynamic VRAM knows nothing of."""
    twin = copy.copy(embedding)
    twin.__dict__.pop("_v", None)
    return twin
