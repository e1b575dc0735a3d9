"""How long a model's weights rest in their file: as long as anything of ours uses the model.

A loader that leaves the workflow often leaves together with the model, and that takes a moment. So the weights
are read into memory a little later, and only if somebody else still has the model; and if there is memory for
them. Where there is not, they stay where they are, and whoever uses one wakes it.
"""

from __future__ import annotations

import _thread
import contextlib
import time
import weakref
from typing import Any

from torch import nn

from ..engine import mapped_weights
from ..errors import WeightFileError
from ..policy.host import RAM_RESERVE
from .host_memory import host_memory

DELAY = 2.0
"""Seconds between the end of the last use and the return to memory."""

_uses: weakref.WeakKeyDictionary[nn.Module, list[weakref.finalize[..., Any]]] = weakref.WeakKeyDictionary()


def rest_while_used(model: nn.Module, user: object) -> None:
    """Let a model's weights rest in their file for as long as `user` lives."""
    use = weakref.finalize(user, _leave, weakref.ref(model))
    use.atexit = False
    _uses.setdefault(model, []).append(use)


def _leave(reference: weakref.ref[nn.Module]) -> None:
    model = reference()
    if model is not None and not _is_used(model):
        # Not a `Thread`: a finalizer may run inside of its locks.
        _thread.start_new_thread(_bring_back, (reference,))


def _bring_back(reference: weakref.ref[nn.Module]) -> None:
    time.sleep(DELAY)
    model = reference()
    if model is None or _is_used(model):
        return
    weights = mapped_weights(model)
    if weights.resting_bytes <= host_memory().available - RAM_RESERVE:
        with contextlib.suppress(WeightFileError):  # whoever uses the weight hears of it
            weights.release_all()


def _is_used(model: nn.Module) -> bool:
    uses = _uses[model] = [use for use in _uses[model] if use.alive]
    return bool(uses)
