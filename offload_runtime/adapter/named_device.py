"""A text encoder that ComfyUI keeps: whoever asks its table where to compute hears the device it is loaded to.

On ComfyUI 0.3.75 a table that was left on the host would move the whole encode to the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import comfy.model_management as mm
import torch
from torch import nn

from ..engine.lane import where_else
from .attachment import Nothing, attach, strip
from .embedding import HostEmbeddings, input_tables


class NamedDevice(Nothing):
    """What a text encoder that ComfyUI keeps carries: whoever asks its table where to compute hears the device.

    Attributes:
        elsewhere: the device on which its layers last ran, if it was another one.
    """

    def __init__(
        self, model: nn.Module, device: torch.device, firsts: Sequence[nn.Module], component: str
    ) -> None:
        super().__init__(component)
        self.elsewhere: torch.device | None = None
        self._embeddings = HostEmbeddings(model, device)
        self._device = device
        self._firsts = firsts
        self._hooks: list[Any] = []

    def inject(self, patcher: Any) -> None:
        """Let the tables name the device: the patcher is loaded now."""
        super().inject(patcher)
        self._embeddings.install()
        self._hooks += [m.register_forward_pre_hook(self._note, with_kwargs=True) for m in self._firsts]

    def eject(self, patcher: Any) -> None:
        """Leave the model as it was."""
        self._embeddings.uninstall()
        while self._hooks:
            self._hooks.pop().remove()

    def _note(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self.elsewhere = where_else(self._device, args, kwargs)


def name_device(patcher: Any, firsts: Sequence[nn.Module] = (), component: str = "") -> NamedDevice | None:
    """Take our contact points off a patcher, but let a text encoder compute where it is loaded.

    Args:
        patcher: a patcher that ComfyUI keeps.
        firsts: layers that tell where it has computed.
        component: the name of what somebody placed, for the log; "" for what is left to ComfyUI.
    """
    strip(patcher)
    model, device = patcher.model, patcher.load_device
    if mm.is_device_cpu(device) or not input_tables(model):
        return None
    named = NamedDevice(model, device, firsts, component)
    attach(patcher, named, lambda old, new: name_device(new, firsts, component))
    return named
