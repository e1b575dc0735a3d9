"""Components whose weights are ComfyUI's to move, and what can be read of them."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import comfy.model_management as mm
from comfy.patcher_extension import CallbacksMP

from ..engine import Stack, parameter_bytes
from ..policy import Placement, format_bytes
from .applied import COMFYUI, GONE, Applied, bytes_there, ran_elsewhere, word_of
from .attachment import KEY, Nothing, attach, strip
from .handles import Handle, is_dynamic
from .named_device import NamedDevice, name_device
from .record import record_of
from .where import bytes_by_place, bytes_on_devices


class Untouched:
    """ComfyUI loads the component and takes it away again.

    Args:
        placement: what was decided.
        how: what ComfyUI does, as the beginning of a sentence.
        handle: the component.
    """

    def __init__(self, placement: Placement, how: str, handle: Handle) -> None:
        self._placement = placement
        self._told = handle.component if placement is not Placement.AUTO else ""
        self._how = how
        self._device = handle.patcher.load_device
        self._model = weakref.ref(handle.patcher.model)
        self._named: NamedDevice | None = None

    def attach(self, patcher: Any, stacks: Sequence[Stack]) -> None:
        """Leave the patcher as it is, but let a text encoder compute where it is loaded, and hear of its uses."""
        if not is_dynamic(patcher):
            self._named = name_device(patcher, [stack.layers[0].module for stack in stacks], self._told)
            if self._named is None:
                attach(patcher, Nothing(self._told), lambda old, new: self.attach(new, stacks))

    def applied(self) -> Applied:
        """Say what ComfyUI does, and how much of it is loaded now."""
        model = self._model()
        if model is None:
            return GONE
        there, whole = bytes_on_devices(model)[str(self._device)], parameter_bytes(model)
        how = f"{self._how}; {bytes_there(there, whole, self._device)}"
        elsewhere = self._named.elsewhere if self._named is not None else None
        if elsewhere is not None:
            how += f"; {ran_elsewhere(elsewhere)}"
        return Applied(word_of(self._placement, there, whole), how, str(elsewhere or self._device))


class OnCpu:
    """The CPU computes, with the weights in memory.

    Args:
        placement: what was decided.
        how: what that means, as the beginning of a sentence.
        handle: the component, whose patcher loads to the CPU.
    """

    def __init__(self, placement: Placement, how: str, handle: Handle) -> None:
        self._placement = placement
        self._component = handle.component
        self._how = how
        self._model = weakref.ref(handle.patcher.model)

    def attach(self, patcher: Any, stacks: Sequence[Stack]) -> None:
        """Whenever this one is used, read what another placement of the model has left in its file."""
        strip(patcher)
        if patcher.model is self._model():
            carried = Nothing() if self._placement is Placement.AUTO else InMemory(self._component)
            attach(patcher, carried, lambda old, new: self.attach(new, stacks))

    def applied(self) -> Applied:
        """Say where the weights are now."""
        model = self._model()
        if model is None:
            return GONE
        how, mapped = self._how, record_of(model).mapped
        elsewhere = bytes_by_place(model)
        del elsewhere["memory"]
        elsewhere["file"] = sum(map(mapped.bytes_at_rest, model.parameters()))  # ComfyUI may map it, too
        for place, count in elsewhere.items():
            if count:
                where = "in the model file" if place == "file" else f"on {place}"
                how += f"; {format_bytes(count)} are {where} now, for another placement of this model"
        word = COMFYUI if self._placement is Placement.AUTO else self._placement.value
        return Applied(word, how, "cpu")


class MovedToCpu(OnCpu):
    """ComfyUI loads this patcher to the CPU, and others of the same model to the accelerator."""

    def attach(self, patcher: Any, stacks: Sequence[Stack]) -> None:
        """Let whoever is loaded next find the model as it was before this one was."""
        super().attach(patcher, stacks)
        patcher.add_callback_with_key(CallbacksMP.ON_DETACH, KEY, _leave_cpu)


class InMemory(Nothing):
    """What a patcher carries that computes on the CPU with its weights in memory."""

    def inject(self, patcher: Any) -> None:
        """Read what rests in a file; another placement lets its weights rest again when it is loaded."""
        super().inject(patcher)
        record_of(patcher.model).mapped.release(patcher.model.parameters())


def _leave_cpu(left: Any, unpatch_all: bool) -> None:
    """Take a model's weights for not loaded, when the patcher that they were loaded to the CPU for goes.

    ComfyUI takes all patchers of a model to be for one device: what is loaded for one is loaded for the next, and
    would stay on the CPU.
    """
    loaded = [other.model for other in mm.current_loaded_models]
    replaced = any(p is not None and p is not left and p.model is left.model for p in loaded)
    if not unpatch_all and not replaced and mm.is_device_cpu(left.model.device):
        left.unpatch_model(left.offload_device)
