"""What is done now, sent to the browser that has queued the prompt: at most ten times a second, and the newest last.

The host only leaves a note; the server's own thread sends it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from ..offload_runtime import live
from .running_server import running_server

EVENT = "layerwise_offload.progress"

INTERVAL = 0.1
"""Seconds between two messages."""


class Updates:
    """Hands on the newest of what it is told, with pauses.

    Args:
        send: sends a message; called by `soon` and `later` only.
        soon: has something called by who sends, from any thread.
        later: has something called after some seconds; called by who sends.
    """

    def __init__(
        self,
        send: Callable[[dict[str, Any]], None],
        soon: Callable[[Callable[[], None]], object],
        later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self._send, self._soon, self._later = send, soon, later
        self._newest: live.Told | None = None
        self._busy = False  # whether something is sent soon, or was a moment ago
        self._lock = threading.Lock()

    def tell(self, told: live.Told) -> None:
        """Hear what is done now."""
        with self._lock:
            self._newest = told
            if self._busy:
                return
            self._busy = True
        try:
            self._soon(self._next)
        except RuntimeError:  # the server stops
            self._busy = False

    def _next(self) -> None:
        with self._lock:
            told, self._newest = self._newest, None
            if told is None:
                self._busy = False
                return
        self._later(INTERVAL, self._next)  # first: whatever sending does, the next one comes
        self._send(told())


def add_live() -> None:
    """Have the running server tell of runs; where there is none, nobody is told."""
    running = running_server()
    if running is None:
        return

    def send(told: dict[str, Any]) -> None:
        client = running.client_id  # who has queued the prompt that runs
        if client is not None and client in running.sockets:
            running.send_sync(EVENT, told, client)

    loop = running.loop
    live.listen(Updates(send, loop.call_soon_threadsafe, loop.call_later).tell)
