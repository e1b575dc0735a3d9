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

from ..engine import Layer, MappedWeights, PackedWeights, Stack, tensor_bytes
from ..engine.parts import distinct_parts
from ..engine.slots import why_unmovable
from ..policy import format_bytes


class Pins:
    """Pins the blocks of one model.

    Attributes:
        refusal: why the last one was refused, or "".
    """

    def __init__(self) -> None:
        self.refusal = ""

    def take(self, block: torch.Tensor) -> bool:
        """Pin a block where it is; False when ComfyUI does not pin on this device, or has no room left."""
        with torch.inference_mode(False):
            pinned = bool(mm.pin_memory(nn.Parameter(block, requires_grad=False)))  # the type that it pins
        if not pinned:
            self.refusal = _why_refused(block.nbytes)
        return pinned


def unpin(block: torch.Tensor) -> None:
    mm.unpin_memory(block)  # looked up now: where ComfyUI pins nothing, there need be no such function


class Masters:
    """The masters of one model that are packed into blocks, and who streams from them.

    Args:
        model: the model.

    Attributes:
        weights: the blocks.
    """

    def __init__(self, model: weakref.ref[nn.Module]) -> None:
        self._model = model
        self._pins = Pins()
        self._users: weakref.WeakSet[Any] = weakref.WeakSet()
        self._hooks: list[Any] = []
        self.weights = PackedWeights(self._pins.take, unpin)

    @property
    def why_not_pinned(self) -> str:
        """Why the last block could not be pinned, or ""."""
        return self._pins.refusal

    def streamed_by(self, user: object) -> None:
        """Hear that somebody streams them for as long as it lives."""
        self._users.add(user)
        weakref.finalize(user, self._died).atexit = False

    def rest(self, layers: Iterable[Layer]) -> None:
        """Hear that they are not streamed from here on: whoever runs the layers next may be ComfyUI without us."""
        if not self.weights.packed_bytes:
            return
        self._stop_watching()
        reference = weakref.ref(self)  # the hooks live on the model, which we go with

        def hook(*_: object) -> None:
            masters = reference()
            if masters is not None:
                masters._runs()

        self._hooks = [layer.module.register_forward_pre_hook(hook) for layer in layers]

    def _stop_watching(self) -> None:
        while self._hooks:
            self._hooks.pop().remove()

    def _runs(self) -> None:
        """Hear that a layer runs, the first one since they were not streamed."""
        self._stop_watching()
        model, users = self._model(), list(self._users)
        for loaded in mm.current_loaded_models:
            patcher: Any = loaded.model
            if patcher is not None and patcher.model is model:
                if not any(carried is user for carried in patcher.attachments.values() for user in users):
                    self._hand_over(patcher)
                return

    def _hand_over(self, patcher: Any) -> None:
        """Leave the weights to ComfyUI, in memory of their own.

        ComfyUI pins what it streams when it loads it, and not again.
        """
        self._settle()
        packed = self.weights.addresses
        parameters = dict(patcher.model.named_parameters(remove_duplicate=False))
        for name in [name for name in patcher.pinned if parameters[name].data_ptr() in packed]:
            patcher.unpin_weight(name)
        self.weights.release(parameters.values())
        for name, module in patcher.model.named_modules():
            if hasattr(module, "prev_comfy_cast_weights"):
                for key, parameter in module.named_parameters(prefix=name, recurse=False):
                    if parameter.device.type == "cpu" and key not in patcher.pinned:
                        patcher.pin_weight_to_device(key)

    def _died(self) -> None:
        """Give the pins back when the last one who streams the model has died."""
        if self._model() is not None and not list(self._users):
            self._settle()
            self.weights.unpin()

    def _settle(self) -> None:
        """Wait for all copies: memory that one reads must not be unpinned."""
        if self.weights.pinned_bytes and torch.cuda.is_available():
            torch.cuda.synchronize()

    def pinned_bytes(self, patcher: Any, stacks: Iterable[Stack]) -> int:
        """Return how many bytes of the layers are pinned now, by ComfyUI in place or by us in blocks.

        Args:
            patcher: a patcher of the model.
            stacks: the layers.
        """
        in_place = {name for name in getattr(patcher, "pinned", ()) if isinstance(name, str)}
        placed = sum(tensor_bytes(p) for name, p in _movable(stacks) if name in in_place)
        return placed + self.weights.pinned_bytes

    def bytes_to_add(self, stacks: Iterable[Stack], mapped: MappedWeights) -> int:
        """Return how much more host memory the layers take once they are packed.

        A weight's own memory goes when it is packed. That of a file, or one that other weights view, too, stays.
        """
        ours = self.weights.addresses
        shared: defaultdict[int, int] = defaultdict(int)
        room: dict[int, int] = {}
        resting = 0
        for master in distinct_parts(parameter for _, parameter in _movable(stacks)):
            if mapped.holds(master):
                resting += master.nbytes
            elif master.data_ptr() not in ours:
                storage = master.untyped_storage()
                shared[storage.data_ptr()] += master.nbytes
                room[storage.data_ptr()] = storage.nbytes()
        return resting + sum(count for address, count in shared.items() if count < room[address])


def _why_refused(size: int) -> str:
    limit, taken = int(mm.MAX_PINNED_MEMORY), int(mm.TOTAL_PINNED_MEMORY)
    if limit <= 0:
        return "ComfyUI pins no memory here"
    if taken + size > limit:
        return f"ComfyUI pins at most {format_bytes(limit)}, and has pinned {format_bytes(taken)}"
    return "the system refused to pin more"


def _movable(stacks: Iterable[Stack]) -> Iterator[tuple[str, nn.Parameter]]:
    for stack in stacks:
        for layer in stack.layers:
            for name, parameter in layer.module.named_parameters(prefix=layer.name):
                if parameter.device.type == "cpu" and why_unmovable(parameter) is None:
                    yield name, parameter
