"""When ComfyUI loads what is placed, and how long that holds the host: noted in the run that goes on.

A legacy patcher tells when it is loaded, but not when that begins, so the method that loads it is timed on the
instance. Under dynamic VRAM a load moves nothing: ComfyUI brings pages when they are used.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .. import live
from ..engine.spans import HOST, Track
from .record import record_of
from .runs import current_run

PAGES = "paged in by ComfyUI as it computes"

_NOTICEABLE = 0.001
"""Seconds of a load that moves nothing, as ComfyUI makes before each use; a shorter one is not noted."""


def time_loads(patcher: Any, load: Callable[..., int] | None = None) -> None:
    """Note how long each load of a legacy patcher takes.

    Args:
        patcher: the patcher, whose method is replaced on the instance.
        load: what loads it; by default what its class does.
    """
    reference = weakref.ref(patcher)
    if not hasattr(patcher, "partially_load"):
        return  # a ComfyUI that loads by another name: its loads are not told of

    def partially_load(*args: Any, **kwargs: Any) -> int:
        loading, moved = reference(), 0
        assert loading is not None  # its own attribute is being called
        device, uses = loading.load_device, record_of(loading.model).uses
        uses.tell(live.LOADING, bytes=uses.bytes)
        current_run().clock(device)  # so that what the device does now has its place in time
        begin = time.perf_counter()
        try:
            if load is not None:
                moved = load(*args, **kwargs)
            else:
                moved = type(loading).partially_load(loading, *args, **kwargs)
        finally:
            uses.tell()
            _note(loading.model, device, begin, int(moved))
        return moved

    patcher.__dict__["partially_load"] = partially_load


def note_paged_load(model: nn.Module) -> None:
    """Note that ComfyUI is about to use a model whose weights it pages in by itself."""
    component, now = record_of(model).uses.component, time.perf_counter()
    current_run().spans.add(Track.LOAD, HOST, component, "", now, now, 0, PAGES)


def _note(model: nn.Module, device: torch.device, begin: float, moved: int) -> None:
    end = time.perf_counter()
    moved = moved if device.type != "cpu" else 0  # what the CPU computes with stays where it is
    if moved > 0 or end - begin > _NOTICEABLE:
        component = record_of(model).uses.component
        current_run().spans.add(Track.LOAD, HOST, component, "", begin, end, max(0, moved))
