"""How a decision is carried out on a patcher, and what is then really the case.

`choose_backend` picks one for a decision; each one's `applied()` reads the live model, never the request.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import comfy.model_management as mm
import torch
from torch import nn

from ..engine import (
    HostTier,
    Ledger,
    MappedTier,
    MappedWeights,
    MemoryTier,
    Stack,
    Streamer,
    can_page_out,
    mapped_weights,
)
from ..policy import Decision, Placement, format_bytes
from .attachment import Attachment, account_for_slots, attach, strip
from .embedding import HostEmbeddings
from .handles import Handle


class Backend(Protocol):
    """Carries out one decision."""

    def attach(self, patcher: Any) -> None:
        """Put what is needed on a patcher."""

    def applied(self) -> str:
        """Return what the live model does, in a sentence for people."""


class Untouched:
    """ComfyUI keeps the component; nothing of ours is on it."""

    def __init__(self, what: str, patcher: Any) -> None:
        self._what = what
        self._patcher = weakref.ref(patcher)

    def attach(self, patcher: Any) -> None:
        """Leave the patcher as it is."""

    def applied(self) -> str:
        """Say what ComfyUI does, and how much of it is loaded now."""
        patcher = self._patcher()
        if patcher is None or mm.is_device_cpu(patcher.load_device):
            return self._what
        return f"{self._what}; {format_bytes(int(patcher.loaded_size()))} of it on {patcher.load_device} now"


class Layerwise:
    """The engine runs the layers out of a slot."""

    def __init__(
        self, model: nn.Module, stacks: Sequence[Stack], device: torch.device, tier: HostTier, ledger: Ledger
    ) -> None:
        self._stacks = stacks
        self._device = device
        self._tier = tier
        self._ledger = ledger
        self._model = weakref.ref(model)
        self._attachments: weakref.WeakSet[Attachment] = weakref.WeakSet()

    def attach(self, patcher: Any) -> None:
        """Attach a streamer of its own to a patcher of this model; clones get one when they are made."""
        if patcher.model is not self._model():
            strip(patcher)  # a copy of the model for another device: ComfyUI's
            return
        streamer = Streamer(self._stacks, self._device, self._tier, self._ledger)
        attachment = Attachment(streamer, self._embeddings(patcher))
        attach(patcher, attachment, lambda old, new: self.attach(new))
        self._attachments.add(attachment)
        self._account(patcher, streamer)

    def applied(self) -> str:
        """Say how many layers run through the engine now, and what has been done so far."""
        installed = max((a.streamer.installed_layers() for a in self._attachments), default=0)
        layers = sum(len(stack.layers) for stack in self._stacks)
        slot = max((a.streamer.footprint for a in self._attachments), default=0)
        state = (
            f"{installed} of {layers} layers run"
            if installed
            else f"not loaded now; when it is, its {layers} layers run"
        )
        return f"{state} {self._how(format_bytes(slot))}"

    def _embeddings(self, patcher: Any) -> HostEmbeddings | None:
        return None

    def _account(self, patcher: Any, streamer: Streamer) -> None:
        pass

    def _how(self, slot: str) -> str:
        raise NotImplementedError


class StreamedToDevice(Layerwise):
    """The stream backend: layers are copied to the accelerator, their masters stay in memory."""

    def __init__(
        self, handle: Handle, stacks: Sequence[Stack], ledger: Ledger, resident_bytes: int | None
    ) -> None:
        device = handle.patcher.load_device
        super().__init__(handle.patcher.model, stacks, device, MemoryTier(device), ledger)
        self._resident_bytes = resident_bytes or 0

    def _embeddings(self, patcher: Any) -> HostEmbeddings:
        return HostEmbeddings(patcher.model, self._device)

    def _account(self, patcher: Any, streamer: Streamer) -> None:
        account_for_slots(patcher, streamer, max(0, self._resident_bytes - streamer.footprint))

    def _how(self, slot: str) -> str:
        return f"on {self._device} out of one slot of {slot}, copied from memory when they run"


class StreamedFromFile(Layerwise):
    """The advise backend: the CPU computes, and the masters are the pages of the safetensors file."""

    def __init__(
        self, handle: Handle, stacks: Sequence[Stack], ledger: Ledger, weights: MappedWeights
    ) -> None:
        device = torch.device("cpu")
        super().__init__(handle.patcher.model, stacks, device, MappedTier(weights), ledger)

    def _how(self, slot: str) -> str:
        dropped = "and dropped from memory after it" if can_page_out() else "and left to the system to drop"
        return f"on the CPU out of one slot of {slot}, each read from the model file when it runs {dropped}"


def choose_backend(
    decision: Decision, handle: Handle, stacks: Sequence[Stack], files: Sequence[Path], ledger: Ledger
) -> Backend:
    """Return what carries out a decision, prepared as far as the machine allows."""
    patcher = handle.patcher
    if decision.placement is Placement.AUTO:
        return Untouched("left to ComfyUI's own memory manager", patcher)
    if getattr(patcher, "is_dynamic", bool)():
        return Untouched(
            "left to ComfyUI's dynamic VRAM, which this version of the pack does not steer yet", patcher
        )
    if decision.placement is Placement.CPU:
        return _on_cpu(handle)
    on_cpu = mm.is_device_cpu(patcher.load_device)
    if decision.placement is Placement.LAYERWISE:
        return _layerwise(decision, handle, stacks, files, ledger, on_cpu)
    if on_cpu:
        return _whole_on_cpu(decision, handle)
    if decision.placement is Placement.OFFLOAD:
        what = "ComfyUI loads it whole when it is used, and evicts it when another model needs the room"
        return Untouched(what, patcher)
    return Untouched(
        "ComfyUI loads it whole as far as it fits, and may still evict it for another model", patcher
    )


def _layerwise(
    decision: Decision,
    handle: Handle,
    stacks: Sequence[Stack],
    files: Sequence[Path],
    ledger: Ledger,
    on_cpu: bool,
) -> Backend:
    patcher = handle.patcher
    if not stacks:
        return Untouched("left to ComfyUI: no repeated layers were found in it", patcher)
    if handle.slot == "vae" and handle.value.disable_offload:
        return Untouched("left to ComfyUI, which does not allow this VAE to be offloaded", patcher)
    if not on_cpu:
        return StreamedToDevice(handle, stacks, ledger, decision.budget_bytes)
    weights = mapped_weights(patcher.model)
    if not weights.adopt(_movable(patcher.model, stacks), files):
        named = (
            f"no file that this workflow names ({', '.join(p.name for p in files)})" if files else "no file"
        )
        return Untouched(
            "stays in memory, where the CPU computes with it: streaming would gain nothing, because "
            f"{named} holds the same bytes to read its layers from",
            patcher,
        )
    return StreamedFromFile(handle, stacks, ledger, weights)


def _movable(model: nn.Module, stacks: Sequence[Stack]) -> dict[str, nn.Parameter]:
    """Return the weights that may view a file: those copied into a slot, and tables that are only looked up.

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


def _on_cpu(handle: Handle) -> Backend:
    if not mm.is_device_cpu(handle.patcher.load_device):
        _evict(handle.patcher)
        handle.compute_on_cpu()
        return Untouched("computes on the CPU, by your wish", handle.patcher)
    return Untouched("computes on the CPU, as ComfyUI would have done", handle.patcher)


def _whole_on_cpu(decision: Decision, handle: Handle) -> Backend:
    model = handle.patcher.model
    mapped_weights(model).release(model.parameters())
    if decision.placement is Placement.OFFLOAD:
        what = "stays in memory, where the CPU computes with it: there is no other device to offload it from"
        return Untouched(what, handle.patcher)
    return Untouched("in memory, where the CPU computes with it", handle.patcher)


def _evict(patcher: Any) -> None:
    """Unload every loaded clone of a model, so that its weights are in host memory again."""
    others = [
        loaded
        for loaded in mm.current_loaded_models
        if loaded.model is None or not loaded.model.is_clone(patcher)
    ]
    mm.free_memory(1e30, patcher.load_device, keep_loaded=others)
