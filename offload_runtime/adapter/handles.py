"""The ComfyUI objects that carry a component, and how each is cloned and moved to the CPU.

Inputs are never mutated: a handle is made of a clone.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import comfy.model_management as mm
import torch

from ..errors import AttachError
from ..policy import NOT_SAID, VaeUse
from .carriers import carrier_of, copied, patcher_of
from .contacts import Group, missing_on
from .vaes import vae_name, watch_frames

_NAMES = {"model": "diffusion_model", "clip": "text_encoder", "clip_vision": "image_encoder"}
"""Socket → component name; a VAE is named by what it is for, and all others are called as their socket."""


@dataclass
class Handle:
    """A cloned ComfyUI object and the patcher inside it.

    Attributes:
        socket: which socket it came in by.
        component: its component name in this workflow.
        value: the object to hand on.
        patcher: its `ModelPatcher`.
    """

    socket: str
    component: str
    value: Any
    patcher: Any

    def unload(self) -> None:
        """Unload every loaded clone of the model, so that its weights are in host memory again."""
        others = [
            loaded
            for loaded in mm.current_loaded_models
            if loaded.model is None or not loaded.model.is_clone(self.patcher)
        ]
        mm.free_memory(1e30, self.patcher.load_device, keep_loaded=others)

    def leave_dynamic(self) -> None:
        """Take the component off dynamic VRAM: ComfyUI loads its weights once more, into an ordinary patcher.

        The object that holds the patcher names the model, too, and computes with that one.
        """
        self.patcher = self.patcher.clone(disable_dynamic=True)
        self.value = carrier_of(self.socket, self.value).hold(self.value, self.patcher)

    def compute_on_cpu(self) -> None:
        """Make ComfyUI load and run this clone on the CPU."""
        cpu = torch.device("cpu")
        self.patcher.load_device = self.patcher.offload_device = cpu
        carrier_of(self.socket, self.value).move(self.value, cpu)


def is_dynamic(patcher: Any) -> bool:
    """Tell whether ComfyUI pages the weights of a patcher in by itself; older versions never do."""
    return bool(getattr(patcher, "is_dynamic", bool)())


def patcher_in(socket: str, value: Any) -> Any:
    """Return the patcher inside an object.

    Raises:
        AttachError: the object holds no model.
    """
    patcher = patcher_of(socket, value)
    if patcher is None:
        raise AttachError(
            f"the {socket} input holds no model ({type(value).__name__}); check the loader in front of it"
        )
    return patcher


def open_handle(
    socket: str, value: Any, taken: Collection[str], use: VaeUse = NOT_SAID, diffusion_model: Any = None
) -> Handle:
    """Clone an object.

    Args:
        socket: the socket that the value came in by.
        value: the ComfyUI object.
        taken: component names that this workflow uses already; the next free one is chosen.
        use: what the prompt says about the use of the VAE.
        diffusion_model: the MODEL that came with it, if one did.

    Raises:
        AttachError: the object holds no model, or none that ComfyUI's memory manager knows.
    """
    lack = missing_on(Group.LOADER, patcher_in(socket, value), socket, value)
    if lack:
        raise AttachError(
            f"the {socket} input cannot be placed, because {lack} ({type(value).__name__}); connect it past this loader"
        )
    value = copied(socket, value)
    if socket == "vae":
        watch_frames(value)
    name = vae_name(value, use, diffusion_model) if socket == "vae" else _NAMES.get(socket, socket)
    return Handle(socket, free_name(name, taken), value, patcher_of(socket, value))


def free_name(base: str, taken: Collection[str]) -> str:
    """Return a component's name, with the next number where it is taken."""
    name, number = base, 1
    while name in taken:
        number += 1
        name = f"{base}_{number}"
    return name
