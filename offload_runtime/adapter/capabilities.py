"""What can be carried out on a component, as it was handed to us on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import comfy.model_management as mm

from ..engine import Stack, is_compiled
from ..policy import (
    IN_SAMPLER,
    PAGED,
    STREAMED,
    Capabilities,
    MachineFacts,
    Placement,
    cannot_copy,
    not_movable,
)
from .handles import Handle, is_dynamic
from .left_alone import why_lacking

_WHERE_INPUTS_ARE = {
    **dict.fromkeys(IN_SAMPLER, "it computes inside the diffusion model, on the device of that one"),
    **dict.fromkeys(("optical_flow", "da3_model"), "its nodes bring their input to ComfyUI's own device"),
}
"""Socket → why such a component cannot compute on the CPU, as a clause."""


def capabilities_of(handle: Handle, stacks: Sequence[Stack], machine: MachineFacts) -> Capabilities:
    """Return what the backend of a component honours.

    Args:
        handle: the component.
        stacks: its layers.
        machine: the machine.
    """
    can = _honoured(PAGED if is_dynamic(handle.patcher) else STREAMED, handle)
    if handle.socket in _WHERE_INPUTS_ARE and not mm.is_device_cpu(handle.patcher.load_device):
        can = can.without(Placement.CPU, Placement.AUTO, _WHERE_INPUTS_ARE[handle.socket])
    if is_dynamic(handle.patcher) and getattr(handle.patcher, "cached_patcher_init", None) is None:
        why = (
            "to compute on the CPU it has to be loaded a second time, and the loader that it came from does not say "
            "how, so it is left to ComfyUI"
        )
        can = can.without(Placement.CPU, Placement.AUTO, why)
    if not mm.is_device_cpu(handle.patcher.load_device):
        can = _on_device(can, handle, machine)
    if stacks and all(is_compiled(layer) for stack in stacks for layer in stack.layers):
        why = "torch.compile made all its layers, and guards their weights, so it is left to ComfyUI"
        can = can.without(Placement.LAYERWISE, Placement.AUTO, why)
    if handle.socket == "vae" and getattr(handle.value, "disable_offload", False):
        can = not_movable(can, type(handle.patcher.model).__name__)
    return can


def _honoured(can: Capabilities, handle: Handle) -> Capabilities:
    """Return what is left where this ComfyUI, or the patcher, lacks what we rely on."""
    if why_lacking(Placement.AUTO, handle):
        can = replace(can, budget_when_whole=False)
    for placement in Placement:
        why = why_lacking(placement, handle)
        if why and placement is not Placement.AUTO:
            can = can.without(placement, Placement.AUTO, f"{why}, so it is left to ComfyUI")
    return can


def _on_device(can: Capabilities, handle: Handle, machine: MachineFacts) -> Capabilities:
    directml = machine.flag("--directml")
    if directml is not None or (handle.patcher.load_device.type == "mps" and not machine.shared_memory):
        return cannot_copy(can, directml or machine.device)
    return can
