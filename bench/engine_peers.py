"""The peers beside the engine: run here where they are installed, else the figures that the baseline published."""

from __future__ import annotations

import importlib.util
import os
from typing import NamedTuple

from tests.sim.comfyui import ENVIRONMENT, tree
from tests.sim.crosscheck.published import H200, PUBLISHED, SGLANG
from tests.sim.crosscheck.systems import Row, simulate


class Peer(NamedTuple):
    """Another way to run a model that does not stay on the card; `system` is its name in `crosscheck`."""

    name: str
    system: str
    pinned: bool = True


PEERS = (
    Peer("resident", "resident"),
    Peer("whole model moved", "whole_pinned"),
    Peer("ComfyUI", "comfy_async"),
    Peer("ComfyUI", "comfy_async_pageable", pinned=False),
    Peer("ComfyUI, dynamic VRAM", "comfy_dynamic_noroom"),
    Peer("diffusers, blocks", "diffusers_block_stream"),
    Peer("diffusers, leaves", "diffusers_leaf_stream"),
    Peer("SGLang", "sglang_pinned"),
    Peer("SGLang", "sglang_pageable", pinned=False),
)


def figures(peer: Peer, model: str, profile: str, *, run: bool) -> tuple[Row, str] | None:
    """Return what a peer takes for a model and where that comes from, or None when nobody knows.

    Args:
        run: simulate it where that can be done.
    """
    if run and can_run(peer.system):
        return simulate(peer.system, model, profile), "run here"
    table = PUBLISHED | SGLANG if profile == "rtx4090" else H200
    row = table.get((peer.system, model))
    return None if row is None else (row, "published")


def can_run(system: str) -> bool:
    """Tell whether the simulator can run a system here."""
    if system.startswith("comfy_dynamic"):
        return can_run("comfy") and (tree() / "comfy" / "model_prefetch.py").is_file()
    if system.startswith("comfy"):
        return ENVIRONMENT in os.environ
    if system.startswith("diffusers"):
        return all(importlib.util.find_spec(name) for name in ("diffusers", "accelerate"))
    return not system.startswith("sglang")
