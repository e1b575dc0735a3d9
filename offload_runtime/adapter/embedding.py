"""A text encoder's token embedding table, looked up on the host.

The table is large and only a few rows of it are read. On ComfyUI 0.3.75 the device of its weight even decides
where the whole encode runs, so a table left on the host would silently move the encode to the CPU. While the
encoder is loaded, `get_input_embeddings` therefore answers with a stand-in that names the compute device,
looks the rows up where the table is, and sends them over. Later versions ask the table only where somebody calls
the encoder past `CLIP`, as some packs do.

With dynamic VRAM a table has addresses in a range of pages as well, and ComfyUI would copy all of it there, or
copy all of it on the host when the ids are there. A stand-in without those addresses is looked up as it is.
"""

from __future__ import annotations

import contextlib
import copy
import weakref
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

_PLAIN = (torch.float32, torch.float16, torch.bfloat16)


def stays_on_host(table: nn.Module) -> bool:
    """Tell whether a table that dynamic VRAM would page in can be looked up on the host just as well.

    It cannot when rows have to be computed from the whole of it: quantised, patched, or not loaded.
    """
    weight = table.weight
    patched = getattr(table, "weight_lowvram_function", None) or getattr(table, "weight_function", None)
    plain = type(weight) is nn.Parameter and weight.dtype in _PLAIN and weight.device.type == "cpu"
    return plain and not patched


class HostEmbedding:
    """Stands in for an embedding whose table is not on the compute device."""

    def __init__(self, embedding: nn.Embedding, device: torch.device, *, on_host: bool = True) -> None:
        self.weight = SimpleNamespace(device=device)
        self._embedding = embedding
        self._on_host = on_host

    def __call__(self, ids: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        """Look up `ids` (any shape, integer); returns their rows where the ids are."""
        # A patched table is cast by ComfyUI where its input is, patches and all: that is too much for the host.
        patched = getattr(self._embedding, "weight_function", None)
        place = self._embedding.weight.device if self._on_host and not patched else ids.device
        rows: torch.Tensor = self._embedding(ids.to(place), **kwargs)
        # Where core has not placed the table it does not cast it, and leaves out the wish for another dtype.
        return rows.to(ids.device, kwargs.get("out_dtype"))


class HostEmbeddings:
    """The stand-ins of one text encoder, installed and removed with its layers.

    Args:
        model: the text encoder.
        device: where it computes.
        on_host: whether tables that ComfyUI pages in are looked up on the host instead, where they can be.
    """

    def __init__(self, model: nn.Module, device: torch.device, *, on_host: bool = True) -> None:
        self._device = device
        self.on_host = on_host
        self._stand_ins: dict[nn.Module, Any] = {}
        self._owners = list(_tables_of(model))

    def tables(self) -> list[nn.Module]:
        """Return the tables themselves."""
        return [type(owner).get_input_embeddings(owner) for owner in self._owners]  # type: ignore[attr-defined]

    def install(self) -> None:
        """Shadow `get_input_embeddings` of every text model."""
        for owner in self._owners:
            owner.__dict__["get_input_embeddings"] = self._stand_ins[owner] = self._stand_in(owner)

    def uninstall(self) -> None:
        """Give the original method back, unless somebody else has shadowed it since."""
        for owner, stand_in in self._stand_ins.items():
            if owner.__dict__.get("get_input_embeddings") is stand_in:
                del owner.__dict__["get_input_embeddings"]
        self._stand_ins.clear()

    def _stand_in(self, owner: nn.Module) -> Any:
        original = type(owner).get_input_embeddings  # type: ignore[attr-defined]
        reference = weakref.ref(owner)

        def get_input_embeddings() -> Any:
            embedding = original(reference())
            if embedding.weight.device == self._device:
                return embedding
            if hasattr(embedding, "_v"):
                if not (self.on_host and stays_on_host(embedding)):
                    return HostEmbedding(embedding, self._device, on_host=False)
                embedding = _without_pages(embedding)
            return HostEmbedding(embedding, self._device)

        return get_input_embeddings


def input_tables(model: nn.Module) -> list[nn.Module]:
    """Return the token embedding tables of a model's text models."""
    return list(_tables_of(model).values())


def _tables_of(model: nn.Module) -> dict[nn.Module, nn.Module]:
    """Return text model → its table. A class may inherit the method and have no table."""
    found = {}
    for module in model.modules():
        method = getattr(type(module), "get_input_embeddings", None)
        with contextlib.suppress(NotImplementedError):
            table = method(module) if method is not None else None
            if isinstance(table, nn.Module):
                found[module] = table
    return found


def _without_pages(embedding: nn.Embedding) -> nn.Embedding:
    """Return an embedding of the same table that dynamic VRAM knows nothing of."""
    twin = copy.copy(embedding)
    del twin._v
    return twin
