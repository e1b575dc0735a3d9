"""What is really in force for a component, in words and read from the live model."""

from __future__ import annotations

from typing import NamedTuple

import torch

from ..policy import Placement, format_bytes

COMFYUI = "comfyui"
"""The word for a component that is left to ComfyUI's own memory manager."""


_HARDLY = 0.01
"""A share of a component that is not worth a word: ComfyUI leaves a few small weights on the device for good."""


class Applied(NamedTuple):
    """What is in force now.

    Attributes:
        word: a placement, `comfyui`, or "" where there is no model any more.
        how: what that means here, in words.
        device: where it computes, or computed in the last use if that was elsewhere.
        host: where the masters of its layers wait, or "" where nothing else can be than what was decided.
        host_why: why they wait elsewhere than was decided, or "".
    """

    word: str
    how: str
    device: str = ""
    host: str = ""
    host_why: str = ""


GONE = Applied("", "the model is gone: nothing uses it any more")


def word_of(wish: Placement, there: int, whole: int) -> str:
    """Return the word for a component that ComfyUI brings to the device and takes away again.

    Args:
        wish: the placement that was decided.
        there: bytes of it on the device now.
        whole: bytes of all of it.
    """
    if wish is Placement.AUTO:
        return COMFYUI
    if there >= whole:
        return Placement.RESIDENT.value
    if there > _HARDLY * whole or wish is Placement.LAYERWISE:
        return Placement.LAYERWISE.value
    return Placement.OFFLOAD.value


def bytes_there(there: int, whole: int, device: torch.device) -> str:
    """Say how much of a component is on its device now."""
    if there >= whole:
        return f"all {format_bytes(whole)} are on {device} now"
    if not there:
        return f"none of its {format_bytes(whole)} are on {device} now"
    part = f"{format_bytes(there)} of {format_bytes(whole)} are on {device} now"
    return f"{part}, and ComfyUI copies the rest when it runs"


def ran_elsewhere(device: torch.device) -> str:
    """Say that a component ran on another device than the one that it is loaded to."""
    return f"in the last use its layers were given inputs on {device}, and ran there"
