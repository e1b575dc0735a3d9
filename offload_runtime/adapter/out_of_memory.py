"""Hearing that a model ran out of memory, from whoever is around its calls: nothing of ComfyUI is replaced for it.

What ComfyUI catches itself, as it does for a VAE that is tried again in tiles, has ended a call that is watched.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from .record import record_of

_MISSING = re.compile(r"[Tt]ried to allocate ([\d.]+) ([KMG])i?B")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@contextmanager
def heard_of(model: nn.Module) -> Iterator[None]:
    """Hear of it if what is done inside runs out of memory."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        hear_of(model, error)
        raise


def hear_of(model: nn.Module | None, error: BaseException | None) -> None:
    """Let the workflows of a model know how one of its uses has ended, if that was for want of memory."""
    if model is None or not isinstance(error, torch.OutOfMemoryError):
        return
    record = record_of(model)
    record.uses.ran_out()
    for workflow in list(record.workflows):
        workflow.ran_out(model, missing_in(error))


def room_for(model: nn.Module) -> int:
    """Return what a model should ask ComfyUI for beyond ComfyUI's own estimate, in bytes."""
    return max((workflow.extra(model) for workflow in record_of(model).workflows), default=0)


def missing_in(error: BaseException) -> int:
    """Return the bytes that could not be had, as torch says in words, or 0."""
    found = _MISSING.search(str(error))
    return int(float(found[1]) * _UNITS[found[2]]) if found else 0
