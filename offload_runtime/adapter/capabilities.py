"""What can be carried out on a component, as it was handed to us on this machine."""

from __future__ import annotations

from collections.abc import Sequence

import comfy.model_management as mm

from ..engine import Stack, is_compiled
from ..policy import PAGED, STREAMED, Capabilities, MachineFacts, Placement, cannot_copy, not_movable
from .handles import Handle, is_dynamic


def capabilities_of(handle: Handle, stacks: Sequence[Stack], machine: MachineFacts) -> Capabilities:
    """Return what the backend of a component honours.

    Args:
        handle: the component.
        stacks: its layers.
        machine: the machine.
    """
    can = _paged(handle) if is_dynamic(handle.patcher) else STREAMED
    if not mm.is_device_cpu(handle.patcher.load_device):
        can = _on_device(can, machine)
    if stacks and all(is_compiled(layer) for stack in stacks for layer in stack.layers):
        why = "torch.compile made all its layers, and guards their weights, so it is left to ComfyUI"
        can = can.without(Placement.LAYERWISE, Placement.AUTO, why)
    if handle.slot == "vae" and getattr(handle.value, "disable_offload", False):
        can = not_movable(can, type(handle.patcher.model).__name__)
    return can


def _paged(handle: Handle) -> Capabilities:
    can = PAGED
    if not hasattr(handle.patcher, "_vbar_get"):
        can = Capabilities(keeper=PAGED.keeper)
        why = "this version of the pack cannot steer the dynamic VRAM of this ComfyUI, so it is left to that"
        for placement in (Placement.RESIDENT, Placement.LAYERWISE, Placement.OFFLOAD):
            can = can.without(placement, Placement.AUTO, why)
    if getattr(handle.patcher, "cached_patcher_init", None) is None:
        why = (
            "to compute on the CPU it has to be loaded a second time, and the loader that it came from does not say "
            "how, so it is left to ComfyUI"
        )
        can = can.without(Placement.CPU, Placement.AUTO, why)
    return can


def _on_device(can: Capabilities, machine: MachineFacts) -> Capabilities:
    directml, device = machine.flag("--directml"), mm.get_torch_device()
    if directml is not None or (mm.is_device_mps(device) and not machine.shared_memory):
        return cannot_copy(can, directml or machine.device)
    return can
