"""The four ComfyUI objects that carry a component, and how each is cloned and moved to the CPU.

Inputs are never mutated: a handle is made of a clone.
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import comfy.model_management as mm
import torch

from ..errors import AttachError
from ..policy import NOT_SAID, VaeUse
from .contacts import Group, missing_on
from .vaes import vae_name, watch_frames

_NAMES = {"model": "transformer", "clip": "text_encoder", "clip_vision": "image_encoder"}
"""Socket → component name; a VAE is named by what it is for."""


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
        patcher = self.patcher.clone(disable_dynamic=True)
        inner = {"clip": "cond_stage_model", "vae": "first_stage_model", "clip_vision": "model"}
        if self.socket == "model":
            self.value = patcher
        else:
            self.value.patcher = patcher
            setattr(self.value, inner[self.socket], patcher.model)
        self.patcher = patcher

    def compute_on_cpu(self) -> None:
        """Make ComfyUI load and run this clone on the CPU."""
        cpu = torch.device("cpu")
        self.patcher.load_device = self.patcher.offload_device = cpu
        if self.socket == "vae":
            self.value.device = cpu
        elif self.socket == "clip_vision":
            self.value.load_device = cpu


def is_dynamic(patcher: Any) -> bool:
    """Tell whether ComfyUI pages the weights of a patcher in by itself; older versions never do."""
    return bool(getattr(patcher, "is_dynamic", bool)())


def patcher_in(socket: str, value: Any) -> Any:
    """Return the patcher inside a MODEL, CLIP, VAE or CLIP_VISION.

    Raises:
        AttachError: the object holds no model.
    """
    patcher = value if socket == "model" else getattr(value, "patcher", None)
    if patcher is None or getattr(patcher, "model", None) is None:
        raise AttachError(
            f"the {socket} input holds no model ({type(value).__name__}); check the loader in front of it"
        )
    return patcher


def open_handle(
    socket: str, value: Any, taken: Collection[str], use: VaeUse = NOT_SAID, diffusion_model: Any = None
) -> Handle:
    """Clone a MODEL, CLIP, VAE or CLIP_VISION.

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
    if socket in ("model", "clip"):
        value = value.clone()
    else:  # neither has a clone(); core copies a VAE the same way (Select VAE Device)
        value = copy.copy(value)
        value.patcher = value.patcher.clone()
    patcher = value if socket == "model" else value.patcher
    if socket == "vae":
        watch_frames(value)
    name = vae_name(value, use, diffusion_model) if socket == "vae" else _NAMES[socket]
    return Handle(socket, _free_name(name, taken), value, patcher)


def _free_name(base: str, taken: Collection[str]) -> str:
    name, number = base, 1
    while name in taken:
        number += 1
        name = f"{base}_{number}"
    return name
