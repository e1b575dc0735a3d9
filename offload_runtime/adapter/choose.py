"""Which backend carries a decision out. What it could not carry out has never been decided."""

from __future__ import annotations

from collections.abc import Sequence

import comfy.model_management as mm

from ..engine import Ledger, Stack
from ..policy import ComponentFacts, Decision, Placement
from .backends import Backend, StreamedFromFile, StreamedToDevice
from .dynamic import Paged
from .dynamic_order import PageWish
from .file_layers import FileLayers
from .giving_way import WHILE_USED
from .handles import Handle, is_dynamic
from .left_alone import left_alone
from .untouched import MovedToCpu, OnCpu, Untouched


def choose_backend(
    decision: Decision,
    handle: Handle,
    stacks: Sequence[Stack],
    found: FileLayers | None,
    ledger: Ledger,
    facts: ComponentFacts,
) -> Backend:
    """Return what carries a decision out.

    Args:
        decision: the decision.
        handle: the component; for `cpu` it may get another patcher.
        stacks: its layers.
        found: what of its layers the model file holds, where that was looked for.
        ledger: where transfers are counted.
        facts: what the decision was made from.
    """
    if (alone := left_alone(decision.placement, handle)) is not None:
        return alone
    if decision.placement is Placement.CPU:
        return _to_cpu(handle)
    if is_dynamic(handle.patcher):
        return _paged(decision, handle, facts)
    if stacks and (decision.placement is Placement.LAYERWISE or decision.gives_way):
        return _layerwise(decision, handle, found, ledger)
    if mm.is_device_cpu(handle.patcher.load_device):
        return OnCpu(decision.placement, _ON_CPU[decision.placement], handle)
    return Untouched(decision.placement, _WHOLE[decision.placement], handle)


_WHOLE = {
    Placement.AUTO: "left to ComfyUI's own memory manager",
    Placement.OFFLOAD: WHILE_USED,
    Placement.RESIDENT: "ComfyUI loads it whole as far as it fits, and may still evict it for another model",
}

_ON_CPU = {
    Placement.AUTO: "left to ComfyUI, which computes it on the CPU",
    Placement.RESIDENT: "in memory, where the CPU computes with it",
}


def _layerwise(decision: Decision, handle: Handle, found: FileLayers | None, ledger: Ledger) -> Backend:
    if found is not None:
        found.lay()
    if mm.is_device_cpu(handle.patcher.load_device):
        return StreamedFromFile(handle, ledger)
    return StreamedToDevice(handle, ledger, decision)


def _to_cpu(handle: Handle) -> Backend:
    if mm.is_device_cpu(handle.patcher.load_device):
        return OnCpu(Placement.CPU, "computes on the CPU, as ComfyUI would have done", handle)
    handle.unload()
    if not is_dynamic(handle.patcher):
        handle.compute_on_cpu()
        return MovedToCpu(Placement.CPU, "computes on the CPU", handle)
    handle.leave_dynamic()
    handle.compute_on_cpu()
    return OnCpu(Placement.CPU, "computes on the CPU, from weights loaded for that", handle)


def _paged(decision: Decision, handle: Handle, facts: ComponentFacts) -> Backend:
    explicit = decision.asked is not None
    wish = PageWish(decision.placement, explicit, decision.budget_asked, facts.loops, decision.flexible)
    return Paged(handle, wish)
