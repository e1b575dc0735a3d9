"""How ComfyUI's objects hold a model: where its patcher is, and what else names the model and its device.

An object that nobody here has heard of is read by its looks: it is a patcher, or has one, or has none (`unmanaged.py`).
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple


class Carrier(NamedTuple):
    """The attributes of one kind of object.

    Attributes:
        patcher: its patcher; "" where the object is one itself.
        model: the model that it computes with.
        device: where its inputs are brought before that; "" where it asks its patcher.
    """

    patcher: str
    model: str
    device: str

    def patcher_of(self, value: Any) -> Any:
        """Return the patcher, or None where the object has none, or none with a model."""
        patcher = getattr(value, self.patcher, None) if self.patcher else value
        return patcher if getattr(patcher, "model", None) is not None else None

    def hold(self, value: Any, patcher: Any) -> Any:
        """Let an object compute with another patcher; return the object, which may be the patcher."""
        if not self.patcher:
            return patcher
        setattr(value, self.patcher, patcher)
        if getattr(value, self.model, None) is not patcher.model:  # some only let it be read
            setattr(value, self.model, patcher.model)
        return value

    def move(self, value: Any, device: Any) -> None:
        """Let an object bring its inputs to another device."""
        if self.device and hasattr(value, self.device):
            setattr(value, self.device, device)


_CARRIERS = {
    "clip": Carrier("patcher", "cond_stage_model", ""),
    "vae": Carrier("patcher", "first_stage_model", "device"),
    "control_net": Carrier("control_model_wrapped", "control_model", "load_device"),
}
"""Socket → how its objects hold their model, where it is not as most do."""

_PATCHER = Carrier("", "", "")
_MOST = Carrier("patcher", "model", "load_device")


def carrier_of(socket: str, value: Any) -> Carrier:
    """Return how the object that came in by a socket holds its model."""
    if socket == "model" or hasattr(value, "is_clone"):
        return _PATCHER
    return _CARRIERS.get(socket, _MOST)


def patcher_of(socket: str, value: Any) -> Any:
    """Return the patcher inside an object, or None where there is none."""
    return carrier_of(socket, value).patcher_of(value)


def copied(socket: str, value: Any) -> Any:
    """Return a copy of an object, with a clone of its patcher."""
    carrier = carrier_of(socket, value)
    if not carrier.patcher or socket == "clip":
        return value.clone()
    # Others have no clone(); core copies a VAE the same way (Select VAE Device).
    other = value.copy() if socket == "control_net" else copy.copy(value)
    return carrier.hold(other, carrier.patcher_of(value).clone())
