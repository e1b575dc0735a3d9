"""What ComfyUI's log hears of each load of what somebody placed: one line, read from the model that is loaded now."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import comfy.model_management as mm

from ..engine import Streamer, parameter_bytes
from ..log import information
from ..policy import format_bytes
from .record import record_of
from .where import bytes_on_devices

if TYPE_CHECKING:
    from .dynamic_order import Place


class LoadLine:
    """Tells of the loads of one component; one that changes nothing, as ComfyUI makes for each use, is not told of."""

    def __init__(self, component: str) -> None:
        self._component = component
        self._told = ""

    def tell(self, what: str) -> None:
        """Write a line, unless the last one since the component left the device says the same."""
        if what != self._told:
            self._told = what
            information("%s: %s", self._component, what)

    def left(self) -> None:
        """Hear that the component has left the device."""
        self._told = ""


def streamed(patcher: Any, streamer: Streamer) -> str:
    """Say how many layers are streamed and from where, what the slots take, and which models stay beside them."""
    layers, count, device = len(streamer.layers), streamer.streamed_layers(), patcher.load_device
    if not count:
        return whole(patcher)
    slots = format_bytes(streamer.slot_bytes or streamer.footprint)
    number = f"{layers} layers" if count == layers else f"{count} of {layers} layers"
    return "; ".join(
        [
            f"{number} streamed from {_source(patcher, streamer)}, {slots} of slots on {device}",
            *_beside(patcher),
        ]
    )


def whole(patcher: Any) -> str:
    """Say how much of a component that is to be whole is on its device."""
    device, size = patcher.load_device, parameter_bytes(patcher.model)
    there = size if mm.is_device_cpu(device) else bytes_on_devices(patcher.model)[str(device)]
    part = f"all {format_bytes(size)}" if there >= size else f"{format_bytes(there)} of {format_bytes(size)}"
    return "; ".join([f"{part} on {device}", *_beside(patcher)])


def paged(place: Place) -> str:
    """Say what holds for a component of which ComfyUI pages the weights in as it computes."""
    budget = f", at most {format_bytes(place.wish.budget)}" if place.wish.budget is not None else ""
    return f"{place.wish.placement}, paged in to {place.device} by dynamic VRAM{budget}"


def _source(patcher: Any, streamer: Streamer) -> str:
    if streamer.reads_file:
        return "the model file"
    pinned, copied = record_of(patcher.model).masters.weights.pinned_bytes, streamer.streamed_bytes()
    if pinned >= copied:
        return "pinned memory"
    return f"memory ({format_bytes(pinned)} of {format_bytes(copied)} pinned)" if pinned else "memory"


def _beside(patcher: Any) -> Iterator[str]:
    """Yield the models of which weights are on the same device, and stay there."""
    for loaded in mm.current_loaded_models:
        other: Any = loaded.model
        if other is None or other.model is patcher.model or loaded.device != patcher.load_device:
            continue
        size = int(other.loaded_size())
        if size and not mm.is_device_cpu(loaded.device):
            yield f"{format_bytes(size)} of {type(other.model).__name__} stay"
