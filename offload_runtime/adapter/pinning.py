"""Pinned memory, in ComfyUI's own account: exact sizes, its limit, its command-line flag.

The blocks of a model belong to those who stream from it. The pins go when the last one dies, and the blocks when
ComfyUI runs the model without us: its weights are then in ordinary memory, each in its own, as ComfyUI left them.
Nobody tells us of such a run, so a model that is not loaded by us has a hook on its layers until the next one.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import comfy.model_management as mm
import torch
from torch import nn

from ..engine import Layer, PackedWeights, Stack, mapped_weights
from ..engine.slots import why_unmovable
from ..policy import format_bytes


class _Pins:
    """Takes pinned blocks for one model.

    Attributes:
        refusal: why the last one was refused, or "".
    """

    def __init__(self) -> None:
        self.refusal = ""

    def take(self, size: int) -> torch.Tensor | None:
        """Return a pinned block, or None when ComfyUI does not pin on this device, or has no room left."""
        with torch.inference_mode(False):
            block = nn.Parameter(
                torch.empty(size, dtype=torch.uint8), requires_grad=False
            )  # the type that it pins
        pinned = bool(mm.pin_memory(block))
        if not pinned:
            self.refusal = _why_refused(size)
        return block if pinned else None


def _unpin(block: torch.Tensor) -> None:
    mm.unpin_memory(block)  # looked up now: where ComfyUI pins nothing, there need be no such function


class _Record:
    """The packed weights of one model, and who streams from them."""

    def __init__(self) -> None:
        self.pins = _Pins()
        self.weights = PackedWeights(self.pins.take, _unpin)
        self.users: weakref.WeakSet[Any] = weakref.WeakSet()
        self.hooks: list[Any] = []

    def stop_watching(self) -> None:
        """Take the hooks off."""
        while self.hooks:
            self.hooks.pop().remove()


_of_model: weakref.WeakKeyDictionary[nn.Module, _Record] = weakref.WeakKeyDictionary()


def packed_weights(model: nn.Module) -> PackedWeights:
    """Return the one record of a model's packed weights, shared by everybody who uses that model."""
    return _record(model).weights


def why_not_pinned(model: nn.Module) -> str:
    """Return why the last block of a model could not be pinned, or ""."""
    return _record(model).pins.refusal


def streams_from(model: nn.Module, user: object) -> None:
    """Hear that somebody streams a model's packed weights for as long as it lives."""
    _record(model).users.add(user)
    weakref.finalize(user, _died, weakref.ref(model)).atexit = False


def rests(model: nn.Module, layers: Iterable[Layer]) -> None:
    """Hear that a model is not streamed from here on: whoever runs its layers next may be ComfyUI without us."""
    record, reference = _of_model.get(model), weakref.ref(model)
    if record is None or not record.weights.packed_bytes:
        return
    record.stop_watching()
    record.hooks = [layer.module.register_forward_pre_hook(lambda *_: _runs(reference())) for layer in layers]


def _runs(model: nn.Module | None) -> None:
    """Hear that a layer of a model runs, the first one since it was not streamed."""
    record = _of_model.get(model) if model is not None else None
    if record is None:
        return
    record.stop_watching()
    users = list(record.users)
    for loaded in mm.current_loaded_models:
        patcher: Any = loaded.model
        if patcher is not None and patcher.model is model:
            if not any(carried is user for carried in patcher.attachments.values() for user in users):
                _hand_over(record, patcher)
            return


def _hand_over(record: _Record, patcher: Any) -> None:
    """Leave the weights of a model to ComfyUI, in memory of their own.

    ComfyUI pins what it streams when it loads it, and not again.
    """
    _settle(record)
    packed = record.weights.addresses
    parameters = dict(patcher.model.named_parameters(remove_duplicate=False))
    for name in [name for name in patcher.pinned if parameters[name].data_ptr() in packed]:
        patcher.unpin_weight(name)
    record.weights.release(parameters.values())
    for name, module in patcher.model.named_modules():
        if hasattr(module, "prev_comfy_cast_weights"):
            for key, parameter in module.named_parameters(prefix=name, recurse=False):
                if parameter.device.type == "cpu" and key not in patcher.pinned:
                    patcher.pin_weight_to_device(key)


def _died(model: weakref.ref[nn.Module]) -> None:
    """Give the pins back when the last one who streams a model has died."""
    alive = model()
    record = _of_model.get(alive) if alive is not None else None
    if record is not None and not list(record.users):
        _settle(record)
        record.weights.unpin()


def _settle(record: _Record) -> None:
    """Wait for all copies: memory that one reads must not be unpinned."""
    if record.weights.pinned_bytes and torch.cuda.is_available():
        torch.cuda.synchronize()


def _why_refused(size: int) -> str:
    limit, taken = int(mm.MAX_PINNED_MEMORY), int(mm.TOTAL_PINNED_MEMORY)
    if limit <= 0:
        return "ComfyUI pins no memory here"
    if taken + size > limit:
        return f"ComfyUI pins at most {format_bytes(limit)}, and has pinned {format_bytes(taken)}"
    return "the system refused to pin more"


def pinned_bytes(patcher: Any, stacks: Iterable[Stack]) -> int:
    """Return how many bytes of a model's layers are pinned now, by ComfyUI in place or by us in blocks."""
    record = _of_model.get(patcher.model)
    in_place = {name for name in getattr(patcher, "pinned", ()) if isinstance(name, str)}
    placed = sum(p.nbytes for name, p in _masters(stacks) if name in in_place)
    return placed + (record.weights.pinned_bytes if record is not None else 0)


def bytes_to_add(model: nn.Module, stacks: Iterable[Stack]) -> int:
    """Return how much more host memory a model's layers take once they are packed.

    A weight's own memory goes when it is packed. That of a file, or one that other weights view, too, stays.
    """
    record = _of_model.get(model)
    ours = record.weights.addresses if record is not None else frozenset()
    mapped = mapped_weights(model)
    shared: defaultdict[int, int] = defaultdict(int)
    room: dict[int, int] = {}
    resting = 0
    for _, master in _masters(stacks):
        if mapped.holds(master):
            resting += master.nbytes
        elif master.data_ptr() not in ours:
            storage = master.untyped_storage()
            shared[storage.data_ptr()] += master.nbytes
            room[storage.data_ptr()] = storage.nbytes()
    return resting + sum(count for address, count in shared.items() if count < room[address])


def _masters(stacks: Iterable[Stack]) -> Iterator[tuple[str, nn.Parameter]]:
    for stack in stacks:
        for layer in stack.layers:
            for name, parameter in layer.module.named_parameters(prefix=layer.name):
                if parameter.device.type == "cpu" and why_unmovable(parameter) is None:
                    yield name, parameter


def _record(model: nn.Module) -> _Record:
    found = _of_model.get(model)
    if found is None:
        found = _of_model[model] = _Record()
    return found
