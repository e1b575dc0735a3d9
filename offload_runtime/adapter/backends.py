"""What carries a decision out on a patcher, and says what is then really the case.

`applied()` reads the live model, never the request.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import comfy.model_management as mm
import torch
from torch import nn

from ..engine import (
    FileTier,
    Lane,
    Ledger,
    LooseTensors,
    MappedTier,
    MemoryTier,
    Stack,
    Streamer,
    Tier,
    parameter_bytes,
)
from ..engine.stacks import buffer_bytes, stack_layers
from ..policy import IN_SAMPLER, Decision, Placement, format_bytes
from ..policy import HostTier as Host
from .account import Account, account_for_slots
from .applied import COMFYUI, GONE, Applied, ran_elsewhere
from .attachment import Attachment, attach, strip
from .embedding import HostEmbeddings
from .giving_way import TAKEN, applied_whole
from .guard import Guard
from .handles import Handle
from .loose import loose_bytes
from .named_device import name_device
from .record import record_of
from .round_cost import RoundCost
from .structure import layers_left

_lanes: weakref.WeakValueDictionary[torch.device, Lane] = weakref.WeakValueDictionary()


def lane_to(device: torch.device) -> Lane:
    """Return the one lane to a device, shared by everything that streams there."""
    lane = _lanes.get(device)
    if lane is None:
        lane = _lanes[device] = Lane(device)
    return lane


class Backend(Protocol):
    """Carries out one decision."""

    def attach(self, patcher: Any, stacks: Sequence[Stack]) -> None:
        """Put what is needed on a patcher whose model has these stacks."""

    def applied(self) -> Applied:
        """Return what the live model does."""


@runtime_checkable
class Follower(Protocol):
    """A backend that can follow another decision while its patchers are in use.

    Attributes:
        decide_again: called whenever ComfyUI is about to load one of them.
    """

    decide_again: Callable[[], None]

    def take(self, decision: Decision) -> bool:
        """Follow another decision from the next load on; return whether that can be done."""


class Layerwise(ABC):
    """The engine runs the layers out of slots.

    Lives on in a kept report, and refers to the model and to what is attached to it only weakly.
    """

    _look_ahead = True

    def __init__(
        self, handle: Handle, device: torch.device, ledger: Ledger, budget: int | None = None
    ) -> None:
        self._component = handle.component
        self._budget = budget
        self._device = device
        self._ledger = ledger
        self._layers = self._layer_bytes = self._compiled = 0
        self._model = weakref.ref(handle.patcher.model)
        self._attachments: weakref.WeakSet[Attachment] = weakref.WeakSet()

    def attach(self, patcher: Any, stacks: Sequence[Stack]) -> None:
        """Attach a streamer of its own to a patcher of this model; clones get one when they are made."""
        model = self._model()
        if model is None or patcher.model is not model:
            strip(patcher)  # a copy of the model for another device: ComfyUI's
            return
        record = record_of(model)
        if record.failure:
            name_device(patcher)
            return
        self._layers = sum(len(stack.layers) for stack in stacks)
        self._layer_bytes = sum(stack.bytes for stack in stacks)
        lane, tier, trace = lane_to(self._device), self._tier(model), record.trace
        budget, ahead = self._slot_budget(model, stacks), self._look_ahead
        streamer = Streamer(stacks, lane, tier, self._ledger, budget, trace, look_ahead=ahead)
        self._compiled = self._layers - len(streamer.layers)
        attachment = self._attachment(patcher, streamer)
        if isinstance(tier, MemoryTier):
            record.masters.streamed_by(attachment)
        attach(patcher, attachment, lambda old, new: self.attach(new, stacks))
        self._attachments.add(attachment)
        self._account(patcher, attachment)

    def applied(self) -> Applied:
        """Say how many layers run through the engine now, how many bytes that copies, and what is left to ComfyUI."""
        model = self._model()
        if model is None:
            return GONE
        if failed := record_of(model).failure:
            return Applied(COMFYUI, f"left to ComfyUI, because {failed}", str(self._device))
        streamers = [a.streamer for a in self._attachments]
        active = next((streamer for streamer in streamers if streamer.is_installed), None)
        if active is not None and not active.streamed_bytes():
            there = [f"its layers are all on {self._device}, where they fit", *self._on_host()]
            return Applied(Placement.RESIDENT.value, "; ".join(there), str(self._device))
        slot = self._how(format_bytes(max((streamer.footprint for streamer in streamers), default=0)))
        if active is None:
            how = [f"not loaded now; when it is, its {self._layers} layers run {slot}"]
        else:
            copied = f"{format_bytes(active.streamed_bytes())} of {format_bytes(self._layer_bytes)} per pass"
            how = [f"{active.streamed_layers()} of {self._layers} layers run {slot}: {copied}"]
        how += [*self._left_to_comfyui(model), *self._on_host()]
        elsewhere = self._ledger.elsewhere
        if elsewhere is not None:
            how.append(ran_elsewhere(elsewhere))
        return Applied(
            Placement.LAYERWISE.value, "; ".join(how), str(elsewhere or self._device), *self._host_now()
        )

    def _table_bytes(self) -> int:
        tables = {table for a in self._attachments if a.streamer.is_installed for table in a.tables}
        return sum(map(parameter_bytes, tables))

    def _on_host(self) -> list[str]:
        """Say what is looked up in memory, whatever the placement is."""
        size = self._table_bytes()
        return [f"its token table ({format_bytes(size)}) is looked up in memory"] if size else []

    def _left_to_comfyui(self, model: nn.Module) -> list[str]:
        """Say what of the component the engine does not run, and why."""
        left = layers_left(model)
        in_left = sum(layer.bytes for layer in left)
        beside = parameter_bytes(model) - self._layer_bytes - in_left - self._table_bytes()
        how = [f"{self._compiled} that torch.compile made are left to ComfyUI"] if self._compiled else []
        if left:
            size = format_bytes(in_left)
            how.append(f"{len(left)} ({size}) whose weights cannot be taken apart are left to ComfyUI")
        if beside > 0 and self._device.type != "cpu":
            how.append(f"{format_bytes(beside)} beside its layers are left to ComfyUI")
        return how

    def _host_now(self) -> tuple[str, str]:
        """Return the host tier that the masters are in now, and why they are not where they should be."""
        return "", ""

    @abstractmethod
    def _tier(self, model: nn.Module) -> Tier:
        """Return where the masters of the model's layers live."""

    def _slot_budget(self, model: nn.Module, stacks: Sequence[Stack]) -> int | None:
        """Return what a budget leaves for slots, beside what is brought with the load."""
        if self._budget is None:
            return None
        return max(0, self._budget - loose_bytes(model, list(stack_layers(stacks))))

    def _attachment(self, patcher: Any, streamer: Streamer) -> Attachment:
        return Attachment(self._component, streamer)

    @abstractmethod
    def _account(self, patcher: Any, attachment: Attachment) -> None:
        """Let ComfyUI plan with what the component takes of the device."""

    @abstractmethod
    def _how(self, slot: str) -> str:
        """Say how the layers run out of slots of a size, as the end of a sentence."""


class StreamedToDevice(Layerwise):
    """The stream backend: layers are copied to the accelerator, their masters stay on the host.

    One that gives way has room for all of the component, and streams what ComfyUI takes of it.
    """

    def __init__(self, handle: Handle, ledger: Ledger, decision: Decision) -> None:
        model = handle.patcher.model
        super().__init__(handle, handle.patcher.load_device, ledger, _allowed(decision, model))
        self._host = decision.host_tier or Host.PINNED
        self._look_ahead = decision.look_ahead
        self._gives_way = decision.gives_way
        self._whole_in_use = False
        self._accounts: weakref.WeakSet[Account] = weakref.WeakSet()
        self.decide_again: Callable[[], None] = stand
        keeps_nothing = mm.vram_state is mm.VRAMState.NO_VRAM
        # What is evicted comes back to memory, and there is none for what is read from its file.
        self._flexible = decision.flexible and self._host is not Host.MAPPED and not keeps_nothing
        self._lean = handle.socket == "clip_vision" or handle.patcher.is_clip
        self._runs_alone = handle.socket not in ("model", *IN_SAMPLER)

    def _tier(self, model: nn.Module) -> Tier:
        if self._host is Host.MAPPED:
            tier = FileTier(self._device, record_of(model).mapped)
            record_of(model).rest.while_used_by(tier)
            return tier
        return MemoryTier(self._device, record_of(model).masters.weights, pinned=self._host is Host.PINNED)

    def _attachment(self, patcher: Any, streamer: Streamer) -> Attachment:
        model, reference = patcher.model, weakref.ref(patcher)
        guard = Guard(model, streamer.layers, lambda: self._leave_to_comfyui(reference()))
        streamer.on_elsewhere = guard.refuse
        tables, loose = HostEmbeddings(model, self._device), LooseTensors(self._device)
        return Attachment(self._component, streamer, tables, loose, guard)

    def _leave_to_comfyui(self, patcher: Any) -> bool:
        """Load a patcher as if we were not there; return whether it could be done now."""
        if patcher is None:
            return False
        patcher.detach()
        name_device(patcher)
        lane = lane_to(self._device)
        lane.finish(lane.mark())  # what has failed may still be copying
        record_of(patcher.model).masters.weights.forget(())
        room = mm.get_free_memory(self._device) - mm.minimum_inference_memory()
        if not self._runs_alone and room < 1.1 * patcher.model_size():
            return False  # that would evict what is used beside it now
        mm.load_models_gpu([patcher])
        return True

    def take(self, decision: Decision) -> bool:
        """Follow another decision from the next load on; return whether that can be done without moving anything."""
        model = self._model()
        if model is None or not self._can_follow(decision):
            return False
        budget = _allowed(decision, model)
        if not all(account.could_hold(budget) for account in self._accounts):
            return False
        for account in self._accounts:
            account.hold(budget, whole_in_use=_is_whole_in_use(decision))
        self._budget, self._gives_way = budget, decision.gives_way
        self._whole_in_use = _is_whole_in_use(decision)
        return True

    def _can_follow(self, decision: Decision) -> bool:
        """Tell whether the same patchers can do what was decided: what rests in its file is not loaded whole."""
        if _is_whole_in_use(decision):
            return self._host is not Host.MAPPED
        streamed = decision.placement is Placement.LAYERWISE or decision.gives_way
        return streamed and decision.host_tier in (None, self._host)

    def applied(self) -> Applied:
        """Say what is streamed, or how much is there of a component of which nothing is."""
        model = self._model()
        if model is not None and self._whole_in_use and not record_of(model).failure:
            return applied_whole(model, self._device, Placement.OFFLOAD)
        if model is None or not self._gives_way or record_of(model).failure:
            return super().applied()
        if not any(a.streamer.is_installed and a.streamer.streamed_bytes() for a in self._attachments):
            return applied_whole(model, self._device)
        streamed = super().applied()
        return streamed._replace(how=f"{streamed.how}; {TAKEN}")

    def _account(self, patcher: Any, attachment: Attachment) -> None:
        cost = RoundCost(patcher, self._host is Host.PINNED) if self._flexible else None
        account = account_for_slots(
            patcher,
            attachment,
            self._budget,
            lean=self._lean,
            cost=cost,
            before=lambda: self.decide_again(),
        )
        account.hold(self._budget, whole_in_use=self._whole_in_use)
        self._accounts.add(account)

    def _how(self, slot: str) -> str:
        where = "the model file" if self._host is Host.MAPPED else self._memory()
        when = "while the one before it runs" if self._look_ahead else "when it runs, and waited for"
        return f"on {self._device} out of slots of {slot}, each copied from {where} {when}"

    def _memory(self) -> str:
        pinned, _ = self._packed()
        return f"memory ({format_bytes(pinned)} pinned)" if pinned else "memory"

    def _host_now(self) -> tuple[str, str]:
        model = self._model()
        pinned, packed = self._packed()
        if self._host is Host.STAGED and packed and pinned == packed:
            return Host.PINNED.value, "another placement of this model wants them pinned"
        if model is None or pinned == packed or self._host is not Host.PINNED:
            return self._host.value, ""
        short = f"{format_bytes(packed - pinned)} of {format_bytes(packed)} could not be pinned"
        return Host.STAGED.value, f"{short}: {record_of(model).masters.why_not_pinned}"

    def _packed(self) -> tuple[int, int]:
        """Return the bytes of the model's blocks, those of pinned ones first."""
        model = self._model()
        if model is None:
            return 0, 0
        weights = record_of(model).masters.weights
        return weights.pinned_bytes, weights.packed_bytes


class StreamedFromFile(Layerwise):
    """The advise backend: the CPU computes, and the masters are in the safetensors file."""

    def __init__(self, handle: Handle, ledger: Ledger) -> None:
        super().__init__(handle, torch.device("cpu"), ledger)

    def _tier(self, model: nn.Module) -> Tier:
        tier = MappedTier(record_of(model).mapped)
        record_of(model).rest.while_used_by(tier)
        return tier

    def _account(self, patcher: Any, attachment: Attachment) -> None:
        """ComfyUI keeps no account of ordinary memory, so nothing but its loads is heard of."""
        attachment.tell_of_loads(patcher)

    def _how(self, slot: str) -> str:
        return (
            f"on the CPU out of one slot of {slot}, each read from the model file when it runs and dropped from "
            "memory after it"
        )


def stand() -> None:
    """Let a decision stand as long as nobody takes it again."""


def _is_whole_in_use(decision: Decision) -> bool:
    """Tell whether a component is on the device whole while it is used, and only then."""
    return decision.placement is Placement.OFFLOAD and decision.budget_asked is None


def _allowed(decision: Decision, model: nn.Module) -> int | None:
    """Return the device memory that a model may hold: the plan counts weights only, and all of it has buffers, too."""
    weights, budget = parameter_bytes(model), decision.budget_bytes
    whole = weights + buffer_bytes(model)
    if decision.gives_way or _is_whole_in_use(decision):
        return whole
    if budget is None or budget < weights:
        return budget
    return decision.budget_asked if decision.budget_asked is not None else whole
