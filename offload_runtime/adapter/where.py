"""Where the weights of a model are now, read from the weights themselves."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import comfy.model_management as mm
from torch import nn

from ..engine import tensor_bytes
from ..engine.mapping import Areas
from ..engine.parts import bytes_as_stored, distinct_parts, is_opaque
from ..policy import HostBytes
from .handles import is_dynamic
from .record import record_of


def devices_of(model: nn.Module) -> int:
    """Return over how many accelerators the weights of a model are split; 1 where they are on none."""
    devices = {p.device for p in model.parameters() if p.device.type not in ("cpu", "meta")}
    return max(1, len(devices))


def bytes_by_place(model: nn.Module, masters: HostBytes | None = None) -> Counter[str]:
    """Return place → bytes of weights there: `memory`, `file`, or a device as torch spells it.

    Args:
        model: the model.
        masters: what `masters_of` has found, where somebody has asked already: it is not free.
    """
    host = masters if masters is not None else masters_of(model)
    in_memory = Counter({"file": host.mapped, "memory": host.pinned + host.pageable})
    return in_memory + bytes_on_devices(model)  # without what is 0


def bytes_on_devices(model: nn.Module) -> Counter[str]:
    """Return device, as torch spells it → bytes of weights there; none of them on the host."""
    places: Counter[str] = Counter()
    for parameter in model.parameters():
        if parameter.device.type != "cpu":
            places[str(parameter.device)] += tensor_bytes(parameter)
    for device, pages in getattr(model, "dynamic_vbars", {}).items():
        places[str(device)] += int(pages.loaded_size())
    return places


def host_bytes(model: nn.Module, masters: HostBytes) -> HostBytes:
    """Return what the weights of a model take on the host.

    Under dynamic VRAM ComfyUI keeps copies of what it pages in beside the weights, and pins them while it pins at all.

    Args:
        model: the model.
        masters: what `masters_of` has found.
    """
    loaded: list[Any] = [entry.model for entry in mm.current_loaded_models]
    for patcher in loaded:
        if patcher is not None and patcher.model is model and is_dynamic(patcher):
            pinned, copies = int(patcher.pinned_memory_size()), int(patcher.loaded_ram_size())
            pageable = masters.pageable + max(0, copies - pinned)
            return replace(masters, pinned=masters.pinned + pinned, pageable=pageable)
    return masters


def masters_of(model: nn.Module, areas: Areas | None = None) -> HostBytes:
    """Return where the weights themselves are that are on the host.

    Args:
        model: the model.
        areas: where files lie in memory, where somebody has asked already: it is not free.
    """
    mapped, areas = record_of(model).mapped, Areas() if areas is None else areas
    in_file = pinned = whole = 0
    for part in distinct_parts(p for p in model.parameters() if p.device.type == "cpu"):
        whole += part.nbytes
        if mapped.holds(part):
            in_file += mapped.bytes_at_rest(part)
        elif is_opaque(part):
            continue
        elif areas.at((stored := bytes_as_stored(part)).data_ptr(), part.nbytes) is not None:
            in_file += part.nbytes
        elif stored.is_pinned():
            pinned += part.nbytes
    return HostBytes(in_file, pinned, whole - in_file - pinned)
