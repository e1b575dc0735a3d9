"""What happened when, by name: the newest spans of a run, in a ring.

A span lies between two stamps of a clock. Those of a device become seconds when the device has passed them, and when
somebody asks: nobody waits for them.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from enum import Enum
from typing import NamedTuple

from .clock import Stamp, is_past, seconds_between

LIMIT = 20_000
"""Spans that are kept of a run, some 4 MB; a step of a streamed diffusion model makes about a hundred."""

_OPEN = 512
"""Spans of a device that may wait for being read: each holds two of its events."""

_HOP = 1.0
"""Seconds after which time is counted from a later event: a device tells how far two are apart in few digits."""

HOST = "host"
"""The device of what the host does."""


class Track(Enum):
    """What a span is of."""

    LOAD = "loads"
    CALL = "calls"
    READ = "reading weights"
    COMPUTE = "compute"
    COPY = "copies"


class Span(NamedTuple):
    """Something that took a while.

    Attributes:
        track: what it is.
        device: which device did it, as torch spells it, or `HOST`.
        component: the component that it was done for.
        layer: the layer, or a part of one; "" for all of the component.
        begin: seconds after the run began.
        seconds: how long it took.
        moved: bytes that came to the device.
        tier: where they came from; "" where nothing was moved.
    """

    track: Track
    device: str
    component: str
    layer: str
    begin: float
    seconds: float
    moved: int = 0
    tier: str = ""


class Spans:
    """The newest spans of one run.

    Args:
        limit: how many are kept.

    Attributes:
        dropped: how many older ones have given way.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit = limit
        self.dropped = 0
        self._over = False
        self._began = time.perf_counter()
        self._since: dict[str, tuple[Stamp, float]] = {}
        self._open: deque[tuple[Stamp, Stamp, Track, str, str, str, int, str]] = deque()
        self._closed: deque[Span] = deque(maxlen=limit)
        self._lock = threading.Lock()

    def now(self) -> float:
        """Return the seconds since the run began, by the clock of the host."""
        return time.perf_counter() - self._began

    def align(self, device: str, stamp: Stamp) -> None:
        """Take a stamp of a device for now; before this, what it does is not kept."""
        self._since[device] = stamp, self.now()

    def add(
        self,
        track: Track,
        device: str,
        component: str,
        layer: str,
        begin: Stamp,
        end: Stamp,
        moved: int = 0,
        tier: str = "",
    ) -> None:
        """Note what was done between two stamps; those of the host are its `time.perf_counter()`."""
        with self._lock:
            if self._over:
                return
            if isinstance(begin, float):
                since = begin - self._began
                self._keep(Span(track, device, component, layer, since, end - begin, moved, tier))
            elif device in self._since:
                self._open.append((begin, end, track, device, component, layer, moved, tier))
                if len(self._open) >= _OPEN:
                    self._close()
                if len(self._open) > self.limit:
                    self._open.popleft()
                    self.dropped += 1

    def read(self) -> tuple[list[Span], int]:
        """Return what is over, in the order in which it ended, and how many spans are not over yet."""
        with self._lock:
            self._close()
            return list(self._closed), len(self._open)

    def end(self) -> None:
        """Forget everything, and note nothing more: another run has begun."""
        with self._lock:
            self._over = True
            self._open.clear()
            self._closed.clear()
            self._since.clear()

    def _close(self) -> None:
        while self._open and is_past(self._open[0][1]):
            begin, end, track, device, component, layer, moved, tier = self._open.popleft()
            first, since = self._since[device]
            since += seconds_between(first, begin)
            if since - self._since[device][1] > _HOP:
                self._since[device] = begin, since
            self._keep(Span(track, device, component, layer, since, seconds_between(begin, end), moved, tier))

    def _keep(self, span: Span) -> None:
        self.dropped += len(self._closed) == self.limit
        self._closed.append(span)
