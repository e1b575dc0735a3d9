"""Hearing when a model computes: from the call of one of its outermost modules to the end of that call.

Those are told by torch's own hooks while one of our patchers is loaded; the steps of a diffusion model by a wrapper of
ComfyUI's (`sampling`). What torch compiles stays whole, and is not heard of.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from .record import record_of

_DEPTH = 3
"""How far below the root of a model ComfyUI calls it; calls inside of another one do not count."""

OUT_OF_MEMORY: type[Exception] = getattr(torch, "OutOfMemoryError", None) or torch.cuda.OutOfMemoryError
"""What torch raises; it had another name before 2.5."""


class Watch:
    """Hears of the calls of a model while one of its patchers is loaded."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._uses = record_of(model).uses
        self._device = device
        self._model = weakref.ref(model)
        self._hooks: list[Any] = []

    def install(self) -> None:
        """Put hooks on whatever ComfyUI may call of the model; a diffusion model has a wrapper instead."""
        self.remove()
        model = self._model()
        if model is None or hasattr(model, "diffusion_model"):
            return
        for module in _called(model):
            self._hooks.append(module.register_forward_pre_hook(self._begin))
            self._hooks.append(module.register_forward_hook(self._end, always_call=True))

    def remove(self) -> None:
        """Take the hooks off."""
        while self._hooks:
            self._hooks.pop().remove()

    def _begin(self, module: nn.Module, args: Any) -> None:
        if not torch.compiler.is_compiling():  # a compiled model is left whole, and not timed
            self._uses.begin(module, self._device)

    def _end(self, module: nn.Module, args: Any, output: Any) -> None:
        if not torch.compiler.is_compiling():
            if isinstance(sys.exc_info()[1], OUT_OF_MEMORY):  # torch calls this one whatever ends a module
                self._uses.ran_short(module)
            self._uses.end(module)


def _called(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules that ComfyUI may call from outside: those near the root that compute and have parts."""
    level = [model]
    for _ in range(_DEPTH + 1):
        for module in level:
            parts = module is model or next(module.children(), None) is not None
            if parts and type(module).forward is not nn.Module.forward:
                yield module
        level = [child for module in level for child in module.children()]
