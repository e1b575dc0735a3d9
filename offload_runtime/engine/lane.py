"""The lane to the device: one copy stream beside the compute stream, and the order between them.

Whoever holds an event holds the synchronisation: a copy returns the event of its arrival, a use returns the
event after which its memory may be overwritten. A device without streams computes and copies in program order,
so there every event is None.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from .clock import Clock, Stamp

Event = Any
"""An event of the device's own kind, None for "already so", or a `Future` of either."""

Told = Callable[[Stamp, Stamp, float], None]
"""Hears when a copy began and ended, and since when (`time.perf_counter()`) the host was at it."""


def _nobody(begin: Stamp, end: Stamp, asked: float) -> None:
    """Hear nothing."""


class Lane:
    """Copies to one device on a stream of their own; shared by all components that stream to it."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.name = str(device)
        self._module = torch.get_device_module(device) if device.type != "cpu" else None
        self._copies = self._module.Stream(device) if self._module is not None else None
        self._clock = Clock(device)
        self._worker: ThreadPoolExecutor | None = None
        self._latest: Callable[[], Event] = lambda: (
            None
        )  # what the worker was given last, unless that is done

    def copy(self, after: tuple[Event, ...], work: Callable[[], None], told: Told = _nobody) -> Event:
        """Queue `work` on the copy stream behind some events; return the event of its end."""
        asked = time.perf_counter()
        if self._module is None or self._copies is None:
            work()
            told(asked, self.stamp(), asked)
            return None
        for event in map(_end_of, after):
            if event is not None:
                self._copies.wait_event(event)
        with self._module.stream(self._copies):
            begin = self._clock.stamp()
            work()
            end = self._clock.stamp()
        told(begin, end, asked)
        return end

    def copy_in_background(
        self, after: tuple[Event, ...], work: Callable[[], None], told: Told = _nobody
    ) -> Event:
        """Do the same on a thread of its own: a copy from pageable memory holds whoever asks for it.

        An error of `work` is raised where its event is waited for.
        """
        if self._module is None:
            return self.copy(after, work, told)
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, "layerwise-offload")
            weakref.finalize(self, self._worker.shutdown, wait=False)
        arrived = self._worker.submit(self.copy, after, work, told)
        self._latest = weakref.ref(arrived)
        return arrived

    @property
    def in_order(self) -> bool:
        """Whether the host computes and copies in turn, so that a copy is over when it has been asked for."""
        return self._module is None

    def stamp(self) -> Stamp:
        """Return the moment at which all that compute has queued so far will be done."""
        return self._clock.stamp()

    def has_come(self, event: Event) -> bool:
        """Tell whether an event has come already, so that nobody waits for it."""
        if isinstance(event, Future):
            return event.done() and event.exception() is None and self.has_come(event.result())
        return event is None or bool(event.query())

    def wait(self, event: Event) -> None:
        """Let later compute work start after an event; the host waits only for a background copy to be queued."""
        event = _settled(event)
        if event is not None:
            self._compute().wait_event(event)

    def finish(self, event: Event) -> None:
        """Let the host wait for an event: the masters may be written or given back after it.

        The error of a copy that failed is not raised here: nobody needs what it would have brought.
        """
        event = _end_of(event)
        if event is not None:
            event.synchronize()

    def mark(self) -> Event:
        """Return the event of everything that compute has queued so far."""
        return self.stamp() if self._module is not None else None

    def settle(self) -> None:
        """Let the host wait for all copies: masters may be written then, and the memory of slots given back."""
        if self._copies is not None:
            _end_of(self._latest())  # those in the background are queued in order
            self._copies.synchronize()

    def _compute(self) -> Any:
        assert self._module is not None
        return self._module.current_stream(self.device)


def where_else(device: torch.device, args: Iterable[Any], kwargs: Mapping[str, Any]) -> torch.device | None:
    """Return the device of a layer's inputs, or None when one of them is on `device`."""
    elsewhere = None
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor):
            if value.device.type == device.type:
                return None
            if value.is_floating_point() and value.dim():
                elsewhere = value.device
    return elsewhere


def _settled(event: Event) -> Event:
    return event.result() if isinstance(event, Future) else event


def _end_of(event: Event) -> Event:
    """Return the event itself; a background copy that failed has ended, too."""
    if isinstance(event, Future) and event.exception() is not None:
        return None
    return _settled(event)
