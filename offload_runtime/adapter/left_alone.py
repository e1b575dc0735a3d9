"""A component that nothing of ours is put on, because this ComfyUI, or its patcher, lacks what that would need."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import comfy.model_management as mm

from ..engine import Stack
from ..log import warning
from ..policy import Placement
from .applied import COMFYUI, Applied
from .contacts import Group, lacking
from .handles import Handle, is_dynamic


class LeftAlone:
    """ComfyUI keeps the component. Relies on nothing of ComfyUI."""

    def __init__(self, why: str) -> None:
        self._how = f"left to ComfyUI, because {why}"

    def attach(self, patcher: Any, stacks: Sequence[Stack]) -> None:
        """Leave the patcher as it is."""

    def applied(self) -> Applied:
        """Say why nothing is done."""
        return Applied(COMFYUI, self._how)


def why_lacking(placement: Placement, handle: Handle) -> str:
    """Return what of ComfyUI is missing to carry out a placement, as a clause, or ""."""
    return lacking(_groups(placement, handle), handle)


def left_alone(placement: Placement, handle: Handle) -> LeftAlone | None:
    """Return what stands for a component whose placement cannot be carried out in this ComfyUI, or None."""
    why = why_lacking(placement, handle)
    if not why:
        return None
    warning("%s is left to ComfyUI, because %s", handle.component, why)
    return LeftAlone(why)


def _groups(placement: Placement, handle: Handle) -> Iterator[Group]:
    yield Group.EVERY
    if is_dynamic(handle.patcher):
        yield Group.DYNAMIC
    elif placement is Placement.LAYERWISE and not mm.is_device_cpu(handle.patcher.load_device):
        yield Group.STREAM
    if placement is Placement.CPU:
        yield Group.CPU
