"""Which backend carries a decision out, and how far the machine lets it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import comfy.model_management as mm
from torch import nn

from ..engine import Ledger, Stack, is_compiled, mapped_weights, parameter_bytes
from ..policy import Decision, Placement
from ..policy import HostTier as Host
from .backends import COMFYUI, Backend, MovedToCpu, StreamedFromFile, StreamedToDevice, Untouched
from .dynamic import choose_dynamic
from .handles import Handle, is_dynamic
from .left_alone import left_alone
from .structure import why_left_alone


def choose_backend(
    decision: Decision,
    handle: Handle,
    stacks: Sequence[Stack],
    files: Sequence[Path],
    ledger: Ledger,
    loops: bool,
) -> Backend:
    """Return what carries out a decision, prepared as far as the machine allows.

    Args:
        decision: the decision.
        handle: the component.
        stacks: its layers.
        files: safetensors files that its weights may have come from.
        ledger: where transfers are counted.
        loops: whether its layers are taken to run more than once per use.
    """
    if (alone := left_alone(decision.placement, handle)) is not None:
        return alone
    if is_dynamic(handle.patcher):
        return choose_dynamic(decision, handle, loops)
    if decision.placement is Placement.AUTO:
        return _comfyui(handle, "left to ComfyUI's own memory manager")
    if decision.placement is Placement.CPU:
        return _to_cpu(handle)
    if decision.placement is Placement.LAYERWISE:
        return _layerwise(decision, handle, stacks, files, ledger)
    if _on_cpu(handle):
        return _whole_in_memory(decision, handle)
    if decision.placement is Placement.OFFLOAD:
        how = "ComfyUI loads it whole when it is used, and evicts it when another model needs the room"
        return Untouched(Placement.OFFLOAD.value, how, handle.patcher)
    how = "ComfyUI loads it whole as far as it fits, and may still evict it for another model"
    return Untouched(Placement.RESIDENT.value, how, handle.patcher)


def _layerwise(
    decision: Decision, handle: Handle, stacks: Sequence[Stack], files: Sequence[Path], ledger: Ledger
) -> Backend:
    if not stacks:
        return _comfyui(handle, f"left to ComfyUI, because {why_left_alone(handle.patcher.model)}")
    if all(is_compiled(layer) for stack in stacks for layer in stack.layers):
        return _comfyui(
            handle, "left to ComfyUI, because torch.compile made all its layers, and guards their weights"
        )
    model = handle.patcher.model
    if not _on_cpu(handle):
        host, why = decision.host_tier or Host.PINNED, ""
        if host is Host.MAPPED and not _adopt(model, stacks, files):
            host, why = Host.STAGED, f"{_named(files)} holds the same bytes"
        budget = _budget(decision, model)
        return StreamedToDevice(handle, ledger, budget, host, why, flexible=decision.flexible)
    if _adopt(model, stacks, files):
        return StreamedFromFile(handle, ledger)
    how = (
        "in memory, where the CPU computes with it; layer by layer nothing would be gained, because "
        f"{_named(files)} holds the same bytes to read the layers from"
    )
    return Untouched(Placement.RESIDENT.value, how, handle.patcher)


def _budget(decision: Decision, model: nn.Module) -> int | None:
    """Return the device memory that a model may hold: the plan counts weights only, and all of it has buffers, too."""
    budget = decision.budget_bytes
    if budget is None or budget < parameter_bytes(model):
        return budget
    buffers = sum(buffer.nbytes for buffer in model.buffers())
    return decision.budget_asked if decision.budget_asked is not None else budget + buffers


def _named(files: Sequence[Path]) -> str:
    return f"no file that the workflow names ({', '.join(p.name for p in files)})" if files else "no file"


def _adopt(model: nn.Module, stacks: Sequence[Stack], files: Sequence[Path]) -> int:
    """Let the weights rest in a file that has the same bytes, and return how many bytes do."""
    everything = itertools.chain(model.parameters(), model.buffers())
    return mapped_weights(model).adopt(_movable(model, stacks), files, everything)


def _movable(model: nn.Module, stacks: Sequence[Stack]) -> dict[str, nn.Parameter]:
    """Return the weights that may rest in a file: those copied into a slot, and tables that are only looked up.

    Other weights are used where they are, and a result can depend on how its operands are aligned in memory.
    """
    layers = {
        f"{layer.name}.{name}": parameter
        for stack in stacks
        for layer in stack.layers
        for name, parameter in layer.module.named_parameters()
    }
    tables = {
        f"{name}.{key}": parameter
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding)
        for key, parameter in module.named_parameters(recurse=False)
    }
    return layers | tables


def _to_cpu(handle: Handle) -> Backend:
    if _on_cpu(handle):
        how = "computes on the CPU, as ComfyUI would have done"
        return Untouched(Placement.CPU.value, how, handle.patcher)
    handle.unload()
    handle.compute_on_cpu()
    return MovedToCpu(Placement.CPU.value, "computes on the CPU", handle.patcher)


def _whole_in_memory(decision: Decision, handle: Handle) -> Backend:
    model = handle.patcher.model
    mapped_weights(model).release(model.parameters())
    how = "in memory, where the CPU computes with it"
    if decision.placement is Placement.OFFLOAD:
        how += "; there is no other device to offload it from"
    return Untouched(Placement.RESIDENT.value, how, handle.patcher)


def _comfyui(handle: Handle, how: str) -> Backend:
    return Untouched(COMFYUI, how, handle.patcher)


def _on_cpu(handle: Handle) -> bool:
    return bool(mm.is_device_cpu(handle.patcher.load_device))
