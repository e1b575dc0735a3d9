"""Load with one of ComfyUI's own loaders and place what comes out, with no copy of the weights in between."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from ..policy import NOT_SAID, Placement, Policy, VaeUse
from . import hardware
from .apply import apply_policy
from .as_stored import AsStored
from .handles import patcher_in
from .placed import Placements
from .structure import find_stacks
from .weight_files import named_files, remember, usable
from .whole_prompt import NOTHING_AROUND, Around

_COMPUTED_FROM = ("model", "vae")
"""The sockets of what ComfyUI computes from as it is; the weights of encoders are converted at each use anyway."""


def load_and_place(
    load: Callable[[], Sequence[Any]],
    sockets: Sequence[str],
    inputs: Mapping[str, Any],
    policy: Policy,
    earlier: Placements,
    vae_use: VaeUse = NOT_SAID,
    around: Around = NOTHING_AROUND,
) -> tuple[tuple[Any, ...], Placements, int]:
    """Load and place; the weights stay mapped from their file in between, where that can be.

    Args:
        load: calls ComfyUI's loader; returns its outputs.
        sockets: what each of those is.
        inputs: what the loader is given, file names among it.
        policy: what was asked for.
        earlier: what an earlier loader of the chain has placed.
        vae_use: what the prompt says about the use of the VAE.
        around: what else the prompt uses.

    Returns:
        The loader's outputs, placed; all placements with the new ones added; and how many are new.

    Raises:
        StrictPolicyError: the policy is strict, and this machine cannot do all that it asks for.
    """
    files = named_files(inputs)
    why = _why_copied(files)
    kept = None if why or hardware.dynamic_vram() else AsStored()
    with kept or contextlib.nullcontext():
        loaded = dict(zip(sockets, load(), strict=True))
    objects = {socket: value for socket, value in loaded.items() if _holds_model(socket, value)}
    models = {socket: patcher_in(socket, value).model for socket, value in objects.items()}
    for model in models.values():
        remember(model, files)
        if kept is not None:
            kept.bring_beside(model, find_stacks(model))
    usable_by = dict.fromkeys(objects, files)
    placed, placements = apply_policy(policy, objects, usable_by, earlier, vae_use=vae_use, around=around)
    if kept is not None:
        _settle(kept, models, placements)
    if why:
        placements = replace(placements, notes=(*placements.notes, why))
    return tuple(placed.get(socket, value) for socket, value in loaded.items()), placements, len(objects)


def _settle(kept: AsStored, models: Mapping[str, nn.Module], placements: Placements) -> None:
    for socket, model in models.items():
        found = placements.of(model)
        streams = found is not None and found.decision.placement is Placement.LAYERWISE
        kept.settle(model, converted=socket in _COMPUTED_FROM and not streams)


def _holds_model(socket: str, value: Any) -> bool:
    """Tell whether a loader has found something: a checkpoint need not have a CLIP or a VAE."""
    patcher = value if socket == "model" else getattr(value, "patcher", None)
    return getattr(patcher, "model", None) is not None


def _why_copied(files: Sequence[Path]) -> str:
    """Say why weights are copied into memory as they are loaded, or return ""."""
    names = ", ".join(file.name for file in files)
    flag = hardware.given("--disable-mmap")
    if flag:
        return f"{names} was loaded into memory, because {flag} lets no weights be read from their file."
    if len(usable(files)) < len(files):
        return f"{names} was loaded into memory, because only safetensors files can be read layer by layer."
    return ""
