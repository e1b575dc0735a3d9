"""What carries a decision out on a patcher, and says what is then really the case.

`applied()` reads the live model, never the request.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

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
)
from ..policy import Placement, format_bytes
from .attachment import Attachment, account_for_slots, attach, strip
from .embedding import HostEmbeddings
from .handles import Handle

COMFYUI = "comfyui"
"""The word for a component that is left to ComfyUI's own memory manager."""


class Applied(NamedTuple):
    """What is really in force: a placement word or `comfyui`, and how, in words."""

    word: str
    how: str


class Backend(Protocol):
    """Carries out one decision."""

    def attach(self, patcher: Any) -> None:
        """Put what is needed on a patcher."""

    def applied(self) -> Applied:
        """Return what the live model does."""


class Untouched:
    """ComfyUI keeps the component; nothing of ours is on it."""

    def __init__(self, word: str, how: str, patcher: Any) -> None:
        self._word = word
        self._how = how
        self._patcher = weakref.ref(patcher)

    def attach(self, patcher: Any) -> None:
        """Leave the patcher as it is."""

    def applied(self) -> Applied:
        """Say what ComfyUI does, and how much of it is loaded now."""
        patcher = self._patcher()
        if patcher is None or mm.is_device_cpu(patcher.load_device):
            return Applied(self._word, self._how)
        loaded = f"{format_bytes(int(patcher.loaded_size()))} of it on {patcher.load_device} now"
        return Applied(self._word, f"{self._how}; {loaded}")


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

    def applied(self) -> Applied:
        """Say how many layers run through the engine now, and what has been done so far."""
        installed = max((a.streamer.installed_layers() for a in self._attachments), default=0)
        layers = sum(len(stack.layers) for stack in self._stacks)
        slot = max((a.streamer.footprint for a in self._attachments), default=0)
        state = (
            f"{installed} of {layers} layers run"
            if installed
            else f"not loaded now; when it is, its {layers} layers run"
        )
        return Applied(Placement.LAYERWISE.value, f"{state} {self._how(format_bytes(slot))}")

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
