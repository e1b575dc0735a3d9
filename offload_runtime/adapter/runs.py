"""A run of a workflow as the device saw it: which prompt, when, and how much of the card was in use at the peak."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import comfy.model_management as mm
import torch
from torch import nn

from ..engine.clock import Clock, Stamp, seconds_between
from ..engine.spans import Spans
from .rounds import running_prompt

if TYPE_CHECKING:
    from .uses import Uses

_ALLOCATED = "allocated_bytes.all"  # of torch.cuda.memory_stats, and of those of other accelerators


@dataclass(frozen=True)
class Peak:
    """A device when the most of it was in use, in bytes.

    Attributes:
        device: the device, as torch spells it.
        total: its memory.
        used: what of it was in use.
        other: what of that belonged to no model when the run began.
        models: each model that was there, its class, and what its weights and its slots took.
        during: the model that computed, or None when none of those that are placed did.
    """

    device: str
    total: int
    used: int
    other: int
    models: tuple[tuple[weakref.ref[nn.Module], str, int], ...]
    during: weakref.ref[nn.Module] | None


class Card:
    """The memory of a device, looked at whenever another component begins to compute and when it ends.

    Torch counts the most that was in use since it was asked to count anew, which is done at each look.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._module: Any = torch.get_device_module(device)
        self._module.reset_peak_memory_stats(device)
        self._total = int(
            mm.get_total_memory(device)
        )  # ComfyUI asks the driver for it, and torch for its counts
        self._other = max(0, self._used_now() - sum(size for *_, size in self._models()))
        self.peak: Peak | None = None

    @classmethod
    def of(cls, device: torch.device) -> Card | None:
        """Return the card of a device, or None where torch does not count what is in use."""
        if device.type == "cpu":
            return None
        try:
            module = torch.get_device_module(device)
        except RuntimeError:  # a device outside of torch
            return None
        counts = all(hasattr(module, name) for name in ("memory_stats", "reset_peak_memory_stats"))
        return cls(device) if counts else None

    def look(self, during: nn.Module | None) -> int:
        """Take the most that was in use since the last look as that of one model; return it, in bytes."""
        counts = self._module.memory_stats(self._device)
        above = counts.get(f"{_ALLOCATED}.peak", 0) - counts.get(f"{_ALLOCATED}.current", 0)
        used = self._used_now() + max(0, int(above))
        self._module.reset_peak_memory_stats(self._device)
        if self.peak is None or used > self.peak.used:
            who = weakref.ref(during) if during is not None else None
            self.peak = Peak(str(self._device), self._total, used, self._other, tuple(self._models()), who)
        return used

    def beside(self, used: int) -> int:
        """Return what of the bytes in use is neither a model, by what is there of each now, nor another program's."""
        return max(0, used - self._other - sum(size for *_, size in self._models()))

    def _used_now(self) -> int:
        return self._total - int(mm.get_free_memory(self._device))

    def _models(self) -> Iterator[tuple[weakref.ref[nn.Module], str, int]]:
        """Yield the models that ComfyUI has on the device, and what each takes of it."""
        for entry in mm.current_loaded_models:
            patcher = entry.model if entry.device == self._device else None
            if patcher is not None:
                model = patcher.model
                yield weakref.ref(model), type(model).__name__, int(patcher.loaded_size())


@dataclass
class Run:
    """One run.

    Attributes:
        prompt: the id of its prompt, or None where ComfyUI does not say.
        began: when it began, in seconds since 1970.
        computing: the uses of the model that computed last.
        spans: what happened when in it, by name.
    """

    prompt: str | None
    began: float = field(default_factory=time.time)
    computing: Uses | None = None
    spans: Spans = field(default_factory=Spans)
    _cards: dict[torch.device, Card | None] = field(default_factory=dict)
    _clocks: dict[torch.device, tuple[Clock | None, float, Stamp]] = field(default_factory=dict)

    def card(self, device: torch.device) -> Card | None:
        """Return the memory of a device as this run saw it, or None where it cannot be counted."""
        if device not in self._cards:
            self._cards[device] = Card.of(device)
        return self._cards[device]

    def clock(self, device: torch.device) -> Clock | None:
        """Return what takes the time of a device, or None where torch cannot."""
        if device not in self._clocks:
            clock, since = Clock.of(device), self.spans.now()
            first = clock.stamp() if clock is not None else None
            self._clocks[device] = clock, since, first
            if first is not None:
                self.spans.align(str(device), first)
        return self._clocks[device][0]

    def seconds_at(self, device: torch.device, moment: Stamp) -> float:
        """Return how long after the beginning of the run a moment was that the clock of a device took."""
        _, since, first = self._clocks[device]
        return since + seconds_between(first, moment)

    def told(self, component: str, doing: str, **more: int) -> dict[str, Any]:
        """Return what a browser is told of what is done now; of a card, the most that was in use at a look."""
        if not doing:
            return {"prompt_id": self.prompt}
        peak = self.peak
        card = {"used": peak.used, "total": peak.total} if peak is not None else None
        return {"prompt_id": self.prompt, "component": component, "doing": doing, "card": card, **more}

    @property
    def peak(self) -> Peak | None:
        """The device that the most was in use of, when that was."""
        peaks = [card.peak for card in self._cards.values() if card is not None and card.peak is not None]
        return max(peaks, key=lambda peak: peak.used, default=None)


def held_of(model: nn.Module | None, device: torch.device) -> int | None:
    """Return what ComfyUI has of a model on a device, in bytes, or None where it does not list it."""
    for entry in mm.current_loaded_models:
        patcher = entry.model if entry.device == device else None
        if patcher is not None and patcher.model is model:
            return int(patcher.loaded_size())
    return None


_run = Run(None)

when_over: list[Callable[[Run], None]] = []
"""Called with each run that is over, when the next one begins."""


def current_run() -> Run:
    """Return the run that goes on; what nobody names a prompt for is taken for the one before."""
    global _run
    prompt = running_prompt()
    if prompt is not None and prompt != _run.prompt:
        _run.spans.end()  # components that have not run since still refer to them
        over, _run = _run, Run(prompt)
        for tell in when_over:
            tell(over)
    return _run
