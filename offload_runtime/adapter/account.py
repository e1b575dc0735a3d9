"""What ComfyUI plans with for a streamed component, and what it may place on the device.

A component that streams takes less of the accelerator than ComfyUI would plan for. So a legacy patcher gets instance
overrides of the four size methods, of the one that pins a weight, and of the list of what may be placed. Each closes
over a weak reference, so that the patcher is in no cycle.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import comfy.model_management as mm
import torch

from ..engine import parameter_bytes
from ..engine.stacks import buffer_bytes
from ..log import debug
from . import debug_lines
from .loads import time_loads
from .loose import loose_bytes
from .out_of_memory import hear_of
from .pressure import Pressure
from .progress import progress
from .record import record_of
from .round_cost import RoundCost
from .staying import FIRST_TO_GO, Staying

if TYPE_CHECKING:
    from .attachment import Attachment

OVERRIDES = (
    "partially_load",
    "partially_unload",
    "model_size",
    "loaded_size",
    "pin_weight_to_device",
    "_load_list",
)
"""The methods of a patcher that are replaced on the instance."""


def account_for_slots(
    patcher: Any,
    attachment: Attachment,
    budget: int | None,
    *,
    lean: bool,
    cost: RoundCost | None = None,
    before: Callable[[], None],
) -> Account:
    """Let ComfyUI plan with what the component really takes of the device: resident weights and the slots.

    Args:
        patcher: a legacy `ModelPatcher` that loads to an accelerator.
        attachment: what it carries.
        budget: bytes of the device for the slots, and for weights that ComfyUI places there for good; None for the
            slots alone.
        lean: whether the component's activations are few, so that ComfyUI's reserve for them has room for slots.
        cost: what decides whether it takes the room of others for several uses in a row; None if it may not.
        before: called whenever ComfyUI is about to plan with it.
    """
    account = Account(patcher, attachment, budget, lean, cost, before)
    for name in OVERRIDES:
        patcher.__dict__[name] = getattr(account, name)
    time_loads(patcher, account.partially_load)
    return account


class Account:
    """The size methods of one patcher.

    Inside the base methods the true size has to be visible: they compare it with what is loaded to tell a full
    load.
    """

    def __init__(
        self,
        patcher: Any,
        attachment: Attachment,
        budget: int | None,
        lean: bool,
        cost: RoundCost | None,
        before: Callable[[], None],
    ) -> None:
        self._patcher = weakref.ref(patcher)
        self._before = before
        self._lean = lean
        self._cost = cost
        self._moves_in = False  # whether it takes all the room that it can get, for several uses in a row
        self._whole_in_use = False  # whether it comes back whole for each use, whoever has to go for that
        self._moved_in = 0  # bytes of weights on the device after that
        self._base = type(patcher)
        self._attachment = attachment
        self._streamer = streamer = attachment.streamer
        self._whole = parameter_bytes(patcher.model)
        self._buffers = buffer_bytes(patcher.model)
        self._loose = loose_bytes(patcher.model, streamer.layers)
        self._fits, self._resident = self._room_in(budget)
        self._tables = attachment.tables
        self._without_tables = self._whole - sum(parameter_bytes(table) for table in self._tables)
        named = patcher.model.named_modules()
        self._table_keys = {f"{name}.weight" for name, module in named if module in self._tables}
        self._step = self._whole / 32  # a few bytes more or less free than last time shall not move weights
        self._limit = 0.0  # what the resident weights were chosen for
        self._staying: Staying | None = None
        self._wanted = 0  # bytes of weights that are on the device when all is as it was placed
        self._pressure = Pressure()
        attachment.on_gone = self._pressure.gone
        self._inside = 0

    def _room_in(self, budget: int | None) -> tuple[bool, int]:
        """Return whether nothing needs a slot within a budget, and the bytes of weights that may stay in it."""
        slots = self._streamer.footprint
        resident = max(0, (budget or 0) - slots)
        return resident + slots >= self._whole + self._buffers, max(0, resident - self._loose)

    def could_hold(self, budget: int | None) -> bool:
        """Tell whether the component is within a budget, slots included, or can be without moving much."""
        fits, resident = self._room_in(budget)
        patcher: Any = self._patcher()
        if patcher is None or fits:
            return True
        excess = patcher.model.model_loaded_weight_memory - resident
        slots = self._streamer.footprint + self._loose
        little = excess <= (self._whole // 8 if self._streamer.is_installed else 0)
        return little and (budget is None or slots <= budget)

    def hold(self, budget: int | None, *, whole_in_use: bool) -> None:
        """Keep to another budget; what is too much by a little goes now.

        Args:
            budget: bytes of the device, or None for slots alone.
            whole_in_use: whether it comes back whole for each use, although others take its room in between.
        """
        self._whole_in_use = whole_in_use
        self._fits, self._resident = self._room_in(budget)
        patcher: Any = self._patcher()
        excess = patcher.model.model_loaded_weight_memory - self._resident if patcher is not None else 0
        if not self._fits and excess > 0 and self._streamer.is_installed:
            self.partially_unload(patcher.offload_device, excess + self._streamer.slot_bytes)

    def model_size(self) -> int:
        """Return what loading takes; once loaded, the true size.

        A load is planned with what it will take, or ComfyUI would evict the diffusion model to make room for
        weights that never come. A loaded model is evicted the earlier, the more of it is not loaded: our slots
        are given back in no time, so they shall go before anybody's weights.
        """
        if self._inside:
            return self._whole
        self._before()
        size = self._whole
        fits = self._fits and not self._held_down()
        if not (fits or self._streamer.slot_bytes or self._will_move_in()):
            size = min(size, min(self._worth_it(), self._without_tables) + self._slots_to_plan())
        return max(size, self.loaded_size())

    def loaded_size(self) -> int:
        """Return what is on the device: the weights that ComfyUI placed there, what is loose, and the slots."""
        loose = self._attachment.loose.nbytes if self._attachment.loose is not None else 0
        return int(self._base.loaded_size(self._patcher())) + loose + self._streamer.slot_bytes

    def partially_load(
        self, device: torch.device, extra_memory: float = 0, force_patch_weights: bool = False
    ) -> int:
        """Place the resident weights, within what ComfyUI allows now, and take the slots."""
        patcher: Any = self._patcher()
        held = patcher.model.model_loaded_weight_memory + self._streamer.slot_bytes
        room = held + extra_memory
        free = int(mm.get_free_memory(patcher.load_device))
        takes_back = self._pressure.loads(patcher, held + free, self._step)
        self._moves_in = self._cost is not None and self._cost.begin()
        if self._stays_as_it_is(room) and not (takes_back or force_patch_weights):
            if patcher.object_patches_backup:  # those of a sibling may still be on the model
                self._base.unpatch_model(patcher, patcher.offload_device, unpatch_weights=False)
            patcher.patch_model(load_weights=False)
            change = 0
        else:
            self._streamer.free()
            try:
                change = self._place(device, room, force_patch_weights, takes_back=takes_back)
            except torch.OutOfMemoryError as error:
                hear_of(patcher.model, error)
                patcher.detach()  # as core does when its own part of a load fails
                raise
        self._streamer.adjust()
        self._pin(patcher)
        # The slots now, before a VAE divides what is free by the size of one image. If another program was
        # faster, the first layer that runs asks again.
        with contextlib.suppress(torch.OutOfMemoryError):
            self._streamer.allocate()
        self._attachment.tell(patcher)
        return change

    def _stays_as_it_is(self, room: float) -> bool:
        """Tell whether the weights that are on the device now are all that can stay."""
        patcher: Any = self._patcher()
        if not self._is_placed():
            return False
        loaded = patcher.model.model_loaded_weight_memory
        if self._moves_in:
            complete = loaded == self._moved_in
        elif self._held_down():
            return True
        else:
            complete = loaded >= self._wanted and self._limit == self._choose_limit(room)
        hooked = patcher.forced_hooks or patcher.hook_patches  # core applies them when it loads weights
        return complete and not hooked

    def _place(
        self, device: torch.device, room: float, force_patch_weights: bool, *, takes_back: bool
    ) -> int:
        patcher: Any = self._patcher()
        before, ranked = self._placement(), self._staying is not None
        self._limit, self._staying = self._choose_limit(room), None
        # What is to be whole adds to what is left of it, as core would, and so does what moves in, if that is among
        # what core chooses; and what takes back.
        adds = takes_back or self._limit > self._whole or (self._moves_in and not ranked)
        adds = adds and record_of(patcher.model).placed_for == before
        if self._limit <= self._whole and not self._moves_in:
            there = self._on_device() if adds else frozenset()
            self._staying = Staying(self._listed(), self._streamer.layers, self._limit, there)
        if not (self._is_placed() or adds):
            # Core takes weights back from a model that it calls low on memory only, and would take what is left
            # of them for its own: a LoRA would be lost, and some weights would be on the device uncounted.
            patcher.model.model_lowvram = True
            self._base.unpatch_model(patcher, patcher.offload_device)
        target, self._wanted = self._limit, self._whole
        if self._staying is not None:
            self._wanted = self._staying.bytes
            target = self._wanted + 1  # core wants more room than it takes
        missing = max(0, target - patcher.model.model_loaded_weight_memory)
        change = self._true_sized(self._base.partially_load, device, missing, force_patch_weights)
        record_of(patcher.model).placed_for = self._placement()
        self._moved_in = patcher.model.model_loaded_weight_memory
        return change

    def partially_unload(
        self, device: torch.device, memory_to_free: float = 0, *args: Any, **kwargs: Any
    ) -> int:
        """Give the slots back, and resident weights if that is not enough."""
        asked = self._pressure.asked_beside(self._patcher(), memory_to_free)
        freed = self._streamer.free()
        if freed < memory_to_free:
            missing = memory_to_free - freed
            if self._limit > self._whole and not args and not kwargs:
                self._staying = self._what_stays(missing)
            freed += self._true_sized(self._base.partially_unload, device, missing, *args, **kwargs)
            patcher: Any = self._patcher()
            record_of(patcher.model).placed_for = self._placement()
            self._pressure.evicted(patcher.model.model_loaded_weight_memory, asked)
            self._streamer.adjust()
        debug(lambda: debug_lines.partial_unload(self._attachment.component, freed, int(memory_to_free)))
        return freed

    def _what_stays(self, to_free: float) -> Staying:
        """Choose what stays of a component that was whole, when ComfyUI takes a part of it for the first time.

        Tables that can be looked up on the host go first.
        """
        loaded = self._patcher().model.model_loaded_weight_memory  # type: ignore[union-attr]
        return Staying(self._listed(), self._streamer.layers, max(0.0, loaded - to_free))

    def pin_weight_to_device(self, key: str) -> None:
        """Pin a weight in place, if ComfyUI copies it."""
        if self._is_copied_by_comfyui(key):
            self._base.pin_weight_to_device(self._patcher(), key)

    def _is_copied_by_comfyui(self, key: str) -> bool:
        """Tell whether a weight is no table that is looked up on the host, and in no layer that is packed."""
        left = key in self._table_keys and key not in self._patcher().patches  # type: ignore[union-attr]
        return not left and (self._moves_in or not self._streamer.streams(key))

    def _pin(self, patcher: Any) -> None:
        if not self._moves_in:  # what does is not packed: the way out would undo it
            for name in [name for name in patcher.pinned if not self._is_copied_by_comfyui(name)]:
                patcher.unpin_weight(name)  # of a sibling
            masters = record_of(patcher.model).masters.weights
            to_pack = 0 if self._streamer.reads_file else self._streamer.streamed_bytes()
            self._streamer.pack(progress(to_pack - masters.packed_bytes))
        record_of(patcher.model).masters.weights.forget(patcher.model.parameters())
        # Core pins what it streams once, and unpins it whenever a clone dies.
        for name, module in patcher.model.named_modules():
            if hasattr(module, "comfy_cast_weights"):
                for key, parameter in module.named_parameters(prefix=name, recurse=False):
                    if parameter.device.type == "cpu" and key not in patcher.pinned:
                        patcher.pin_weight_to_device(key)

    def _choose_limit(self, room: float) -> float:
        """Return how many bytes of weights may be on the device, when ComfyUI has room for so many bytes."""
        held_down = not self._moves_in and self._held_down()
        if (self._fits or self._moves_in) and room > self._whole and not held_down:
            return self._whole + 1  # more than all of it: core keeps a reserve for what it would stream
        most = self._whole if self._moves_in else self._worth_it()
        allowed = min(most, (room - self._slots_to_plan()) // self._step * self._step)
        return self._whole if allowed >= self._without_tables else max(0.0, allowed)

    def _worth_it(self) -> int:
        """Return how many bytes of the resident weights that are allowed are not taken again before the next use."""
        return min(self._resident, self._pressure.left) if self._held_down() else self._resident

    def _held_down(self) -> bool:
        """Tell whether no more of it is kept than what others leave it between its uses."""
        patcher: Any = self._patcher()
        return not self._whole_in_use and self._pressure.holds(patcher.model)

    def _will_move_in(self) -> bool:
        """Tell whether a use that begins now takes the room of others."""
        if self._cost is None:
            return False
        return self._cost.will_begin(self._without_tables - self._worth_it(), self._slots_to_plan())

    def _is_placed(self) -> bool:
        """Tell whether the weights on the device are those that were last placed for this patcher."""
        patcher: Any = self._patcher()
        return record_of(patcher.model).placed_for == self._placement()

    def _placement(self) -> tuple[object, ...]:
        """Return what decides which weights are on the device now.

        Core chooses anew what stays whenever it loads, and forgets what it had chosen before, so weights are
        only kept if they were placed for the same limit and the same patches, and nobody has moved any since.
        """
        patcher: Any = self._patcher()
        model = patcher.model
        uuids = patcher.patches_uuid, model.current_weight_patches_uuid
        return self._limit, self._staying is None, *uuids, model.model_loaded_weight_memory

    def _slots_to_plan(self) -> int:
        """Return the bytes of slots, and of what is loose, that ComfyUI has to make room for.

        It always keeps a reserve free for activations. An encoder, which asks for nothing else, leaves most of
        it unused, so its slots go there: a new prompt then evicts nothing of a diffusion model that fills the
        card.
        """
        slots = self._streamer.footprint + self._loose
        reserve = int(mm.minimum_inference_memory()) * 3 // 4 if self._lean else 0
        return max(0, slots - reserve)

    def _load_list(self, *args: Any, **kwargs: Any) -> list[tuple[Any, ...]]:
        """Return what core may place, in the order in which it stays."""
        whole = self._limit > self._whole
        if not self._inside or (whole and self._staying is None):
            listed: list[tuple[Any, ...]] = self._base._load_list(self._patcher(), *args, **kwargs)
            return listed
        if self._staying is None:
            return self._listed()
        tables = [(FIRST_TO_GO, *entry[1:]) for entry in self._listed(tables=True)] if whole else []
        return [*self._staying.ranked(self._listed()), *tables]

    def _on_device(self) -> frozenset[str]:
        """Return the names of the operations whose weights are on the device now."""
        device = self._patcher().load_device  # type: ignore[union-attr]
        return frozenset(
            entry[2]
            for entry in self._listed()
            if all(parameter.device == device for parameter in entry[3].parameters(recurse=False))
        )

    def _listed(self, *, tables: bool = False) -> list[tuple[Any, ...]]:
        """Return what core may place, without the tables that are looked up on the host, or only those."""
        patcher: Any = self._patcher()
        found = {f"{entry[2]}.weight": entry for entry in self._base._load_list(patcher)}
        on_host = self._table_keys - set(patcher.patches)
        return [entry for key, entry in found.items() if (key in on_host) is tables]

    def _true_sized(self, method: Callable[..., int], *args: Any, **kwargs: Any) -> int:
        self._inside += 1
        try:
            return method(self._patcher(), *args, **kwargs)
        finally:
            self._inside -= 1
