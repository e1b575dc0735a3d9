"""How long a device takes for something, by its own events, or by the host's clock where it has none."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from ..clock import Clock, seconds_between


class Stopwatch:
    """Takes the time of what runs on a device.

    Raises:
        RuntimeError: torch can neither time the device nor wait for it.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._clock = Clock.of(device)
        self._wait: Callable[[], Any] = lambda: None
        if self._clock is None:
            self._wait = torch.get_device_module(device).synchronize
        elif device.type != "cpu":
            module = torch.get_device_module(device)
            self._wait = lambda: module.synchronize(device)

    def seconds(self, run: Callable[[], object]) -> float:
        """Return the seconds from an idle device to the end of what was asked of it."""
        self._wait()
        if self._clock is None:
            start = time.perf_counter()
            run()
            self._wait()
            return time.perf_counter() - start
        begin = self._clock.stamp()
        run()
        return seconds_between(begin, self._clock.stamp())

    def best(self, run: Callable[[], object], times: int = 3) -> float:
        """Return the least of some times: what else the machine does only ever adds to one."""
        return min(self.seconds(run) for _ in range(times))
