"""Streams and events with the face of ``torch.cuda``'s, over the virtual clocks."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch

from .machine import StreamState
from .order import Clock
from .runtime import DEVICE_TYPE, active

_TYPE_NUMBER = int(torch._C._autograd.DeviceType.PrivateUse1)


def is_sim(device: Any) -> bool:
    """Whether a device, a name, an index or None (the current one) means the simulated device."""
    if device is None or isinstance(device, int):
        return True
    return torch.device(device).type == DEVICE_TYPE


class SimStream(torch.Stream):
    """A queue of device work. ``stream_id`` 0 is the default stream."""

    def __new__(
        cls, device: Any = None, priority: int = 0, *, stream_id: int | None = None, **_: Any
    ) -> SimStream:
        if not is_sim(device):
            raise ValueError(f"A simulated stream cannot live on {device}.")
        if stream_id is None:
            active().machine.spend(active().profile.light_call_us)
            stream_id = active().machine.new_stream().index
        return super().__new__(cls, stream_id=stream_id, device_index=0, device_type=_TYPE_NUMBER)

    def __init__(self, *_: Any, **__: Any) -> None:
        self._outer: list[int] = []

    @property
    def _state(self) -> StreamState:
        return active().machine.streams[self.stream_id]

    @property
    def cuda_stream(self) -> int:
        return self.stream_id

    def wait_stream(self, stream: torch.Stream) -> None:
        """Later work here starts after everything queued on ``stream`` so far."""
        self.wait_event(stream.record_event())

    def wait_event(self, event: torch.Event) -> None:
        """Later work here starts after ``event``; an event never recorded is no wait, as in CUDA."""
        runtime = active()
        with runtime.machine.lock:
            runtime.machine.spend(runtime.profile.light_call_us)
            if event._recorded is not None:
                runtime.machine.stream_waits(self._state, *event._recorded)

    def record_event(self, event: SimEvent | None = None) -> SimEvent:
        event = SimEvent() if event is None else event
        event.record(self)
        return event

    def query(self) -> bool:
        """Whether all queued work is over. Asking takes time, so polling loops end."""
        return _poll(self._state.ready, self._state.clock)

    def synchronize(self) -> None:
        runtime = active()
        with runtime.machine.lock:
            runtime.machine.spend(runtime.profile.light_call_us)
            runtime.machine.wait_for_stream(self._state, "stream synchronize")

    def __enter__(self) -> SimStream:
        host = active().machine.host
        self._outer.append(host.stream)
        host.stream = self.stream_id
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        active().machine.host.stream = self._outer.pop()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, torch.Stream) and other.stream_id == self.stream_id

    def __hash__(self) -> int:
        return hash((DEVICE_TYPE, self.stream_id))

    def __repr__(self) -> str:
        return f"<sim stream {self.stream_id}>"


class SimEvent:
    """A point in a stream."""

    def __init__(self, device: Any = None, *, enable_timing: bool = False, **_: Any) -> None:
        self._recorded: tuple[float, Clock] | None = None
        self.device = torch.device(DEVICE_TYPE, 0)

    def record(self, stream: SimStream | None = None) -> None:
        runtime = active()
        with runtime.machine.lock:
            runtime.machine.spend(runtime.profile.light_call_us)
            state = runtime.machine.stream if stream is None else runtime.machine.streams[stream.stream_id]
            clock = dict(state.clock)
            # An event on an idle stream still marks what the host knew when it was recorded.
            for actor, number in runtime.machine.host.clock.items():
                clock[actor] = max(clock.get(actor, 0), number)
            self._recorded = (max(state.ready, runtime.machine.host.time), clock)

    def wait(self, stream: SimStream | None = None) -> None:
        (current_stream() if stream is None else stream).wait_event(self)

    def query(self) -> bool:
        """Whether the point has been passed. Asking takes time, so polling loops end."""
        return self._recorded is None or _poll(*self._recorded)

    def synchronize(self) -> None:
        machine = active().machine
        with machine.lock:
            machine.spend(machine.profile.light_call_us)
            if self._recorded is not None:
                machine.wait_until(*self._recorded, "event synchronize")

    def elapsed_time(self, end_event: SimEvent) -> float:
        """Milliseconds between two recorded events."""
        if self._recorded is None or end_event._recorded is None:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        return (end_event._recorded[0] - self._recorded[0]) / 1000


def _poll(time: float, clock: Clock) -> bool:
    machine = active().machine
    with machine.lock:
        machine.spend(machine.profile.light_call_us)
        if machine.host.time < time:
            return False
        machine.wait_until(time, clock, "query")
        return True


class StreamContext:
    """``with stream(s):``; a null context for None, as in ``torch.cuda``."""

    def __init__(self, stream: SimStream | None) -> None:
        self.stream = stream

    def __enter__(self) -> SimStream | None:
        return None if self.stream is None else self.stream.__enter__()

    def __exit__(self, *exception: Any) -> None:
        if self.stream is not None:
            self.stream.__exit__(*exception)


def current_stream(device: Any = None) -> SimStream:
    return SimStream(stream_id=active().machine.host.stream)


def default_stream(device: Any = None) -> SimStream:
    return SimStream(stream_id=0)


def set_stream(stream: SimStream) -> None:
    active().machine.host.stream = stream.stream_id


def synchronize(device: Any = None) -> None:
    """Wait for everything on the device."""
    machine = active().machine
    with machine.lock:
        machine.spend(machine.profile.light_call_us)
        machine.wait_for_all()
