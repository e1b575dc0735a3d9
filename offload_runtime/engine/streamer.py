"""The streamer: for the duration of a layer's `forward`, its weights are those in a slot.

Only entries of `module._parameters` are exchanged, and afterwards the very same host Parameters are back,
whatever happened inside: `try/finally` around `forward`, because torch's `always_call` hooks do not run for a
`BaseException`, which is what ComfyUI's interrupt is. Assigning `.data` or calling `module.to()` would break
quantised and GGUF tensors, and anybody who keeps a reference to a Parameter.

Weights are read through the module when the layer runs, so a LoRA or a replaced Parameter is always seen.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from .ledger import Ledger
from .slots import Slot, slot_bytes, why_unmovable
from .stacks import Layer, Stack, stack_layers
from .tiers import HostTier


@dataclass
class _Exchange:
    """One exchanged entry of a module's `_parameters`."""

    parameters: dict[str, nn.Parameter | None]
    name: str
    master: nn.Parameter


class Streamer:
    """Runs the layers of some stacks out of one slot, one layer at a time.

    Life cycle: `install` wraps the layers, `allocate` takes the slot's memory, `free` gives it back and
    `uninstall` unwraps. Installed without a slot, the first layer call allocates it.
    """

    def __init__(self, stacks: Sequence[Stack], device: torch.device, tier: HostTier, ledger: Ledger) -> None:
        self._layers = tuple(stack_layers(stacks))
        self._device = device
        self._tier = tier
        self._ledger = ledger
        self._slot: Slot | None = None

    @property
    def slot_bytes(self) -> int:
        """The device memory that the slot takes now."""
        return self._slot.capacity if self._slot is not None else 0

    @property
    def footprint(self) -> int:
        """The device memory that the slot takes while the component is loaded."""
        return max((self._room(layer) for layer in self._layers), default=0)

    def install(self) -> None:
        """Wrap every layer's `forward`, in place of another streamer's wrapper if there is one."""
        for index, layer in enumerate(self._layers):
            if self._has(layer):
                continue
            if _wrapper(layer.module) is not None:
                _unwrap(layer.module)
            layer.module.__dict__["forward"] = _LayerForward(layer.module, index, self)

    def uninstall(self) -> None:
        """Unwrap the layers that this streamer wrapped, and no others."""
        for layer in self._layers:
            if self._has(layer):
                _unwrap(layer.module)

    def installed_layers(self) -> int:
        """Return how many layers run through this streamer now, read back from the layers."""
        return sum(self._has(layer) for layer in self._layers)

    def allocate(self) -> None:
        """Take the slot's memory now, so that nobody else plans with it."""
        self._ensure_slot(self.footprint)

    def free(self) -> int:
        """Give the slot's memory back and return how many bytes that were."""
        freed = self.slot_bytes
        self._slot = None
        self._ledger.record_slots(-freed)
        return freed

    def run(self, index: int, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call the `forward` of one of the layers with its weights in the slot."""
        exchanges = self._exchanges(self._layers[index])
        try:
            if exchanges:
                self._fill(exchanges)
            if index + 1 < len(self._layers):
                self._tier.expect(e.master for e in self._exchanges(self._layers[index + 1]))
            self._ledger.layer_runs += 1
            return forward(*args, **kwargs)
        finally:
            for exchange in exchanges:
                exchange.parameters[exchange.name] = exchange.master

    def _fill(self, exchanges: list[_Exchange]) -> None:
        masters = list({id(e.master): e.master for e in exchanges}.values())  # a tied weight is copied once
        views = self._ensure_slot(slot_bytes(masters)).fill(masters)
        in_slot = {id(master): view for master, view in zip(masters, views, strict=True)}
        for exchange in exchanges:
            exchange.parameters[exchange.name] = in_slot[id(exchange.master)]
        self._tier.finish(masters)
        self._ledger.record_move(self._tier.name, sum(master.nbytes for master in masters))

    def _has(self, layer: Layer) -> bool:
        wrapper = _wrapper(layer.module)
        return wrapper is not None and wrapper.streamer() is self

    def _exchanges(self, layer: Layer) -> list[_Exchange]:
        return [
            _Exchange(module._parameters, name, parameter)
            for module, name, parameter in _entries(layer.module)
            if why_unmovable(parameter) is None and self._tier.holds(parameter)
        ]

    def _room(self, layer: Layer) -> int:
        unique = {id(p): p for _, _, p in _entries(layer.module) if why_unmovable(p) is None}
        return slot_bytes(list(unique.values()))

    def _ensure_slot(self, capacity: int) -> Slot:
        if self._slot is None or self._slot.capacity < capacity:
            self.free()
            self._slot = Slot(max(capacity, self.footprint), self._device)
            self._ledger.record_slots(self._slot.capacity)
        return self._slot


def _entries(module: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Parameter]]:
    for child in module.modules():
        for name, parameter in child._parameters.items():
            if parameter is not None:
                yield child, name, parameter


class _LayerForward:
    """Stands in for one layer's `forward`. Refers weakly to both sides, so that it keeps nothing alive."""

    def __init__(self, module: nn.Module, index: int, streamer: Streamer) -> None:
        self.previous = module.__dict__.get("forward")
        self.streamer = weakref.ref(streamer)
        self._module = weakref.ref(module)
        self._index = index
        self.__signature__ = inspect.signature(module.forward)
        self.__doc__ = module.forward.__doc__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module, streamer = self._module(), self.streamer()
        assert module is not None  # its own attribute is being called
        forward = self.previous or type(module).forward.__get__(module)
        if streamer is None:
            return forward(*args, **kwargs)
        return streamer.run(self._index, forward, args, kwargs)


def _wrapper(module: nn.Module) -> _LayerForward | None:
    forward = module.__dict__.get("forward")
    return forward if isinstance(forward, _LayerForward) else None


def _unwrap(module: nn.Module) -> None:
    wrapper = module.__dict__.pop("forward")
    if wrapper.previous is not None:
        module.__dict__["forward"] = wrapper.previous
