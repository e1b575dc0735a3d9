"""How long things took: events of a device that runs behind the host, and the host's own seconds."""

from __future__ import annotations

import pytest
import torch

from offload_runtime.engine.clock import Clock, Intervals, is_past, seconds_between


class Late:
    """An event whose moment comes when somebody waits for it, or when the test says so."""

    def __init__(self, ms: float, past: bool = False) -> None:
        self.ms, self.past, self.waited = ms, past, 0

    def query(self) -> bool:
        return self.past

    def synchronize(self) -> None:
        self.waited += not self.past
        self.past = True

    def elapsed_time(self, end: Late) -> float:
        return end.ms - self.ms


def test_the_host_tells_seconds() -> None:
    clock = Clock.of(torch.device("cpu"))
    assert clock is not None
    begin, end = clock.stamp(), clock.stamp()
    assert is_past(end)
    assert 0 <= seconds_between(begin, end) < 60


def test_a_device_that_torch_knows_nothing_of_has_no_clock() -> None:
    assert Clock.of(torch.device("meta")) is None


def test_nothing_is_waited_for_until_somebody_asks() -> None:
    intervals, ends = Intervals(), [Late(10.0 * n + 5) for n in range(2000)]
    for n, end in enumerate(ends):
        intervals.add(Late(10.0 * n, past=True), end)
    assert intervals.count == 2000
    assert not any(end.waited for end in ends)
    assert intervals.seconds == pytest.approx(2000 * 0.005)
    assert all(end.past for end in ends)


def test_those_that_are_over_are_not_kept() -> None:
    intervals = Intervals()
    for n in range(5000):
        intervals.add(Late(10.0 * n, past=True), Late(10.0 * n + 1, past=True))
    assert len(intervals._open) < 1000
    assert intervals.seconds == pytest.approx(5.0)


def test_seconds_of_the_host_add_up_at_once() -> None:
    intervals = Intervals()
    intervals.add(1.0, 1.5)
    intervals.add(3.0, 3.25)
    assert (intervals.count, intervals.seconds) == (2, 0.75)
