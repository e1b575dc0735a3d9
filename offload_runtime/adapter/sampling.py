"""What a diffusion model tells whenever it is sampled: the memory that ComfyUI asks for beside it, and its steps.

ComfyUI estimates that memory from the shapes of a prompt. Nobody knows it before the first use, and weights that fit
without it may not fit with it. That of a VAE is noted where its frames are (`vaes`).
"""

from __future__ import annotations

from typing import Any

import comfy.sampler_helpers as sampler_helpers
from comfy.patcher_extension import WrappersMP

from .attachment import KEY
from .contacts import Group, missing
from .record import record_of


def watch_sampling(patcher: Any) -> None:
    """Let a diffusion model note what ComfyUI asks for, and its steps, whenever it is sampled; its clones do, too."""
    for group, wrapped, note in _NOTED:
        if not missing(group):
            patcher.remove_wrappers_with_key(getattr(WrappersMP, wrapped), KEY)
            patcher.add_wrapper_with_key(getattr(WrappersMP, wrapped), KEY, note)


def _note(prepare: Any, model: Any, noise_shape: Any, conds: Any, *args: Any, **kwargs: Any) -> Any:
    asked, _ = sampler_helpers.estimate_memory(model, noise_shape, conds)
    record_of(model.model).note_demand(asked)
    return prepare(model, noise_shape, conds, *args, **kwargs)


def _time_step(apply: Any, latent: Any, *args: Any, **kwargs: Any) -> Any:
    model = apply.class_obj
    uses = record_of(model).uses
    uses.begin(model, latent.device)
    try:
        return apply(latent, *args, **kwargs)
    finally:
        uses.end(model)


_NOTED = ((Group.DEMAND, "PREPARE_SAMPLING", _note), (Group.STEPS, "APPLY_MODEL", _time_step))
