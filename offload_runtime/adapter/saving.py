"""What ComfyUI saves of a model that it has only in part on a card: the dtypes that it loads, and every patch.

Newer versions put a patch on a weight that is not on the card when the file is written, and take for granted that the
weight is an ordinary one, in the dtype that it was loaded into. One that rests in its file, or stays in the file's
dtype, is handed to them as one that is not there yet, and becomes what they would write.
"""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any

import torch
from comfy.patcher_extension import CallbacksMP
from torch import nn

from ..engine.promised import promise
from ..engine.resting import Resting
from .contacts import Group, missing, missing_on
from .handles import is_dynamic
from .kept_dtype import loaded_dtype

_KEY = "layerwise_offload_saving"
_METHOD = "model_state_dict_for_saving"


def watch_saving(patcher: Any) -> None:
    """Let a patcher, and all clones of it, save the weights that ComfyUI would."""
    if missing(Group.EVERY) or missing_on(Group.EVERY, patcher) or missing(Group.STREAM):
        return
    if is_dynamic(patcher) or not hasattr(type(patcher), _METHOD):
        return
    patcher.__dict__[_METHOD] = partial(_for_saving, weakref.ref(patcher))
    patcher.remove_callbacks_with_key(CallbacksMP.ON_CLONE, _KEY)
    patcher.add_callback_with_key(CallbacksMP.ON_CLONE, _KEY, lambda old, new: watch_saving(new))


def _for_saving(
    reference: weakref.ref[Any], model: nn.Module | None = None, prefix: str = ""
) -> dict[str, Any]:
    patcher: Any = reference()
    state: dict[str, Any] = getattr(type(patcher), _METHOD)(patcher, model, prefix)
    for name, module in (patcher.model if model is None else model).named_modules():
        for kind in ("weight", "bias"):
            key = f"{name}.{kind}"
            weight = getattr(module, kind, None)
            if key in state and isinstance(weight, torch.Tensor) and _is_cast(module, kind, weight):
                dtype = loaded_dtype(module, kind, weight)
                state[key] = promise(weight.shape, dtype, partial(_cast, patcher, prefix + key, dtype))
    return state


def _is_cast(module: nn.Module, kind: str, weight: torch.Tensor) -> bool:
    """Tell whether ComfyUI would patch a weight of ours as it is written."""
    if not hasattr(module, "comfy_cast_weights") or getattr(module, "comfy_patched_weights", False):
        return False
    return isinstance(weight, Resting) or weight.dtype != loaded_dtype(module, kind, weight)


def _cast(patcher: Any, key: str, dtype: torch.dtype) -> torch.Tensor:
    weight = patcher.patch_weight_to_device(key, device_to=patcher.load_device, return_weight=True)
    cast: torch.Tensor = weight.to("cpu").to(dtype)
    return cast
