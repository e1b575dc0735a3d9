"""The memory that ComfyUI asks for beside a diffusion model whenever it is sampled: learnt, not guessed.

ComfyUI estimates it from the shapes of a prompt. Nobody knows it before the first use, and weights that fit without it
may not fit with it. That of a VAE is noted where its frames are (`vaes`).
"""

from __future__ import annotations

from typing import Any

import comfy.sampler_helpers as sampler_helpers
from comfy.patcher_extension import WrappersMP

from .attachment import KEY
from .contacts import Group, missing
from .record import record_of


def watch_sampling(patcher: Any) -> None:
    """Let a diffusion model note what ComfyUI asks for whenever it is sampled; its clones do, too."""
    if missing(Group.DEMAND):
        return
    patcher.remove_wrappers_with_key(WrappersMP.PREPARE_SAMPLING, KEY)
    patcher.add_wrapper_with_key(WrappersMP.PREPARE_SAMPLING, KEY, _note)


def _note(prepare: Any, model: Any, noise_shape: Any, conds: Any, *args: Any, **kwargs: Any) -> Any:
    asked, _ = sampler_helpers.estimate_memory(model, noise_shape, conds)
    record_of(model.model).note_demand(asked)
    return prepare(model, noise_shape, conds, *args, **kwargs)
