"""What a diffusion model tells whenever it is sampled: the memory that ComfyUI asks for beside it, and its steps.

ComfyUI estimates that memory from the shapes of a prompt. Nobody knows it before the first use, and weights that fit
without it may not fit with it. That of a VAE is noted where its frames are (`vaes`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import comfy.sampler_helpers as sampler_helpers
from comfy.patcher_extension import WrappersMP
from torch import nn

from .attachment import KEY
from .contacts import Group, missing
from .record import record_of
from .watching import OUT_OF_MEMORY


def watch_sampling(patcher: Any) -> None:
    """Let a diffusion model note what ComfyUI asks for, and its steps, whenever it is sampled; its clones do, too."""
    noted = (Group.DEMAND, "PREPARE_SAMPLING", _note), (Group.STEPS, "APPLY_MODEL", _timing(patcher.model))
    for group, wrapped, note in noted:
        if not missing(group):
            patcher.remove_wrappers_with_key(getattr(WrappersMP, wrapped), KEY)
            patcher.add_wrapper_with_key(getattr(WrappersMP, wrapped), KEY, note)


def _note(prepare: Any, model: Any, noise_shape: Any, conds: Any, *args: Any, **kwargs: Any) -> Any:
    asked, _ = sampler_helpers.estimate_memory(model, noise_shape, conds)
    record_of(model.model).note_demand(asked)
    return prepare(model, noise_shape, conds, *args, **kwargs)


def _timing(model: nn.Module) -> Callable[..., Any]:
    """Return what stands around each step: a function, because some nodes copy all that a patcher is sampled with."""
    reference = weakref.ref(model)

    def step(apply: Any, latent: Any, *args: Any, **kwargs: Any) -> Any:
        stepping = reference()
        if stepping is None:
            return apply(latent, *args, **kwargs)
        uses = record_of(stepping).uses
        uses.begin(step, latent.device)
        try:
            return apply(latent, *args, **kwargs)
        except OUT_OF_MEMORY:
            uses.ran_short(step)
            raise
        finally:
            uses.end(step)

    return step
