"""How long things took where they were computed: told by events on the compute stream, which nobody waits for."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import torch

Stamp = Any
"""A moment: an event of the device's own kind, or seconds where the host computes."""

_OPEN = 512
"""Intervals that are remembered until their end has come; the host runs ahead of a device by less than so many."""


class Clock:
    """Takes the time of one device. A stamp costs some microseconds of the host, and none of the device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._module = torch.get_device_module(device) if device.type != "cpu" else None

    @classmethod
    def of(cls, device: torch.device) -> Clock | None:
        """Return the clock of a device, or None where torch has no events for it that tell the time."""
        if device.type == "cpu":
            return cls(device)
        try:
            module = torch.get_device_module(device)
        except RuntimeError:  # a device outside of torch, as that of DirectML
            return None
        return cls(device) if hasattr(module, "Event") and hasattr(module, "current_stream") else None

    def stamp(self) -> Stamp:
        """Return the moment at which the device will have done all that was asked of it until now."""
        if self._module is None:
            return time.perf_counter()
        event = self._module.Event(enable_timing=True)
        event.record(self._module.current_stream(self._device))
        return event


def is_past(stamp: Stamp) -> bool:
    """Tell whether a moment has come."""
    return isinstance(stamp, float) or bool(stamp.query())


def seconds_between(begin: Stamp, end: Stamp) -> float:
    """Return the seconds from one moment to a later one; waits for that if it is still to come."""
    if isinstance(begin, float):
        return float(end - begin)
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1000


class Intervals:
    """Adds up how long things took. It remembers those only whose end is still to come."""

    def __init__(self) -> None:
        self._open: deque[tuple[Stamp, Stamp]] = deque()
        self._seconds = 0.0
        self.count = 0

    def add(self, begin: Stamp, end: Stamp) -> None:
        """Count from one moment to another."""
        self.count += 1
        if isinstance(begin, float):
            self._seconds += end - begin
            return
        self._open.append((begin, end))
        if len(self._open) >= _OPEN:
            self._close()

    @property
    def seconds(self) -> float:
        """All of it; waits for what is still to come."""
        while self._open:
            self._seconds += seconds_between(*self._open.popleft())
        return self._seconds

    def _close(self) -> None:
        while self._open and is_past(self._open[0][1]):
            self._seconds += seconds_between(*self._open.popleft())
