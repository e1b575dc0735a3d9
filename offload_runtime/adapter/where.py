"""Where the weights of a model are now, read from the weights themselves."""

from __future__ import annotations

from collections import Counter

from torch import nn

from ..engine import tensor_bytes
from .record import record_of


def devices_of(model: nn.Module) -> int:
    """Return over how many accelerators the weights of a model are split; 1 where they are on none."""
    devices = {p.device for p in model.parameters() if p.device.type not in ("cpu", "meta")}
    return max(1, len(devices))


def bytes_by_place(model: nn.Module) -> Counter[str]:
    """Return place → bytes of weights there: `memory`, `file`, or a device as torch spells it."""
    mapped = record_of(model).mapped
    places: Counter[str] = Counter()
    for parameter in model.parameters():
        size = tensor_bytes(parameter)
        if parameter.device.type != "cpu":
            places[str(parameter.device)] += size
            continue
        in_file = mapped.bytes_at_rest(parameter)
        places += Counter({"file": in_file, "memory": size - in_file})  # without what is 0
    for device, pages in getattr(model, "dynamic_vbars", {}).items():
        places[str(device)] += int(pages.loaded_size())
    return places
