"""How a streamer rides on a `ModelPatcher`: the only contact points with ComfyUI's memory manager.

Attachment, injection and the ON_CLONE / ON_DETACH callbacks, under one key. The injection wraps the layers
when ComfyUI loads the patcher and unwraps them when it lets go. Instance overrides of the four size methods
are added for a patcher that loads to an accelerator, because it then takes less of it than ComfyUI would plan
for. Every override closes over a weak reference, so that the patcher is in no cycle.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from comfy.patcher_extension import CallbacksMP, PatcherInjection

from ..engine import Streamer, parameter_bytes
from .embedding import HostEmbeddings

KEY = "layerwise_offload"

_OVERRIDES = ("partially_load", "partially_unload", "model_size", "loaded_size")


class Attachment:
    """What one patcher carries: its own streamer, and the way on and off."""

    def __init__(self, streamer: Streamer, embeddings: HostEmbeddings | None) -> None:
        self.streamer = streamer
        self._embeddings = embeddings

    def inject(self, patcher: Any) -> None:
        """Wrap the layers: the patcher is loaded now."""
        # Hook keyframes write into the weights while the encoder stays loaded.
        self.streamer.install(volatile=bool(patcher.forced_hooks or patcher.hook_patches))
        if self._embeddings is not None:
            self._embeddings.install()

    def eject(self, patcher: Any) -> None:
        """Unwrap the layers, unless another patcher of the same model has wrapped them since."""
        if self._embeddings is not None and self.streamer.installed_layers():
            self._embeddings.uninstall()
        self.streamer.uninstall()

    def on_detach(self, patcher: Any, unpatch_all: bool) -> None:
        """Give the slot back: on eviction, and when a clone of the model is loaded instead."""
        self.streamer.free()


def attach(patcher: Any, attachment: Attachment, on_clone: Callable[[Any, Any], None]) -> None:
    """Put an attachment on a patcher, in place of one that is there.

    Args:
        patcher: a `ModelPatcher` that our node owns.
        attachment: what it shall carry.
        on_clone: called with (old, new) when the patcher is cloned.
    """
    strip(patcher)  # a clone starts with the contact points of the patcher it was made from
    patcher.set_attachments(KEY, attachment)
    patcher.set_injections(KEY, [PatcherInjection(attachment.inject, attachment.eject)])
    patcher.add_callback_with_key(CallbacksMP.ON_CLONE, KEY, on_clone)
    patcher.add_callback_with_key(CallbacksMP.ON_DETACH, KEY, attachment.on_detach)


def strip(patcher: Any) -> None:
    """Take our contact points off a patcher that is not loaded, such as a fresh clone."""
    patcher.attachments.pop(KEY, None)
    patcher.injections.pop(KEY, None)
    for event in (CallbacksMP.ON_CLONE, CallbacksMP.ON_DETACH):
        patcher.remove_callbacks_with_key(event, KEY)
    for name in _OVERRIDES:
        patcher.__dict__.pop(name, None)


def account_for_slots(patcher: Any, streamer: Streamer, resident_bytes: int) -> None:
    """Let ComfyUI plan with what the component really takes of the device: resident weights and the slot.

    `model_size()` reports that footprint, or ComfyUI would evict the diffusion model to make room for weights
    that never come. Inside the base methods the true size has to be visible: they compare it with what is
    loaded to tell a full load.

    Args:
        patcher: a legacy `ModelPatcher` that loads to an accelerator, with its streamer attached.
        streamer: its streamer.
        resident_bytes: how many bytes of weights ComfyUI may place on the device for good.
    """
    reference = weakref.ref(patcher)
    full = parameter_bytes(patcher.model)
    footprint = min(full, resident_bytes + streamer.footprint)
    base = type(patcher)
    inside = 0

    def true_sized(method: Callable[..., int], *args: Any, **kwargs: Any) -> int:
        nonlocal inside
        inside += 1
        try:
            return method(reference(), *args, **kwargs)
        finally:
            inside -= 1

    def model_size() -> int:
        return full if inside else footprint

    def loaded_size() -> int:
        # ComfyUI places a few bytes even where nothing may stay; it relies on the loaded size being the smaller.
        return min(footprint, int(base.loaded_size(reference())) + streamer.slot_bytes)

    def partially_load(
        device: torch.device, extra_memory: float = 0, force_patch_weights: bool = False
    ) -> int:
        streamer.free()
        # Before ComfyUI looks for weights to pin: it leaves alone what is pinned already, and a weight that it
        # has pinned in place could not be packed any more.
        reference().unpin_all_weights()  # type: ignore[union-attr]
        streamer.pack()
        loaded = reference().model.model_loaded_weight_memory  # type: ignore[union-attr]
        change = true_sized(base.partially_load, device, resident_bytes - loaded, force_patch_weights)
        streamer.allocate()  # now, before a VAE divides what is free by the size of one image
        return change

    def partially_unload(device: torch.device, memory_to_free: float = 0, *args: Any, **kwargs: Any) -> int:
        freed = streamer.free()
        if freed < memory_to_free:
            freed += true_sized(base.partially_unload, device, memory_to_free - freed, *args, **kwargs)
        return freed

    for name, override in zip(
        _OVERRIDES, (partially_load, partially_unload, model_size, loaded_size), strict=True
    ):
        patcher.__dict__[name] = override
