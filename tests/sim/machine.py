"""The clocks of the simulated card: host threads, streams, and the engines that streams share."""

from __future__ import annotations

import threading
from bisect import bisect_left

from .order import Access, Actor, Clock, join
from .profile import Profile
from .site import Site
from .timeline import COMPUTE, HOST, TO_DEVICE, TO_HOST, Interval, Timeline


class Lane:
    """One engine: it does one thing at a time, and takes the earliest gap that fits.

    Work that waits for an event therefore does not hold up work of another stream that could go first.
    """

    def __init__(self) -> None:
        self._starts: list[float] = []
        self._ends: list[float] = []

    def reserve(self, ready: float, duration: float) -> float:
        """Book ``duration`` from ``ready`` on; the start that was found."""
        index = bisect_left(self._ends, ready)
        start = ready
        while index < len(self._starts) and self._starts[index] < start + duration:
            start = max(start, self._ends[index])
            index += 1
        end = start + duration
        if index and self._ends[index - 1] == start:
            self._ends[index - 1] = end
        else:
            self._starts.insert(index, start)
            self._ends.insert(index, end)
        return start


class StreamState:
    """A queue of device work. ``ready`` is when its last piece ends."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.actor: Actor = ("stream", index)
        self.ready = 0.0
        self.number = 0
        self.clock: Clock = {}


class HostState:
    """A host thread: its own time, what it knows, and the stream it launches on."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.actor: Actor = ("thread", index)
        self.time = 0.0
        self.number = 0
        self.clock: Clock = {}
        self.stream = 0


class HandOff:
    """What a thread knew and what time it was when it handed something to another thread."""

    __slots__ = ("clock", "time")

    def __init__(self, host: HostState) -> None:
        self.time = host.time
        self.clock = dict(host.clock)


class Machine:
    """All clocks. Callers hold :attr:`lock` around one operation, so threads never interleave inside one."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.lock = threading.RLock()
        self.timeline = Timeline()
        self.streams: list[StreamState] = [StreamState(0)]
        self._hosts: list[HostState] = []
        self._local = threading.local()
        self._lanes = {COMPUTE: Lane(), TO_DEVICE: Lane(), TO_HOST: Lane()}

    # Host threads ---------------------------------------------------------------------------------

    @property
    def host(self) -> HostState:
        """The calling thread."""
        state: HostState | None = getattr(self._local, "state", None)
        if state is None:
            with self.lock:
                state = HostState(len(self._hosts))
                self._hosts.append(state)
            self._local.state = state
        return state

    def spend(self, microseconds: float, name: str | None = None, moved: int = 0) -> None:
        """Let the calling thread work for a while."""
        host = self.host
        if name is not None:
            end = host.time + microseconds
            self.timeline.add(Interval(HOST, name, f"thread {host.index}", host.time, end, moved))
        host.time += microseconds

    def host_access(self, what: str) -> Access:
        """Number one use of memory by the calling thread."""
        host = self.host
        host.number += 1
        host.clock[host.actor] = host.number
        return Access(host.actor, host.number, what, Site.here())

    def hand_off(self) -> HandOff:
        """Say that what this thread did so far happens before whatever :meth:`take_over` returns to do."""
        return HandOff(self.host)

    def take_over(self, token: HandOff) -> None:
        """Wait, in virtual time, for the moment of ``token``, and know what its thread knew."""
        host = self.host
        host.time = max(host.time, token.time)
        join(host.clock, token.clock)

    # Streams --------------------------------------------------------------------------------------

    @property
    def stream(self) -> StreamState:
        """The calling thread's current stream."""
        return self.streams[self.host.stream]

    def new_stream(self) -> StreamState:
        with self.lock:
            self.streams.append(StreamState(len(self.streams)))
            return self.streams[-1]

    def begin(self, what: str) -> tuple[StreamState, Access]:
        """Number the next piece of work of the current stream; it starts from all that the host knows."""
        stream = self.stream
        join(stream.clock, self.host.clock)
        stream.number += 1
        stream.clock[stream.actor] = stream.number
        return stream, Access(stream.actor, stream.number, what, Site.here())

    def run(
        self, stream: StreamState, kind: str, name: str, duration: float, moved: int, pinned: bool = True
    ) -> None:
        """Queue work on ``stream``: once it is launched, and the stream and the engine are free."""
        self.spend(self.profile.launch_us)
        start = self._lanes[kind].reserve(max(self.host.time, stream.ready), duration)
        stream.ready = start + duration
        row = f"stream {stream.index} {kind}"
        self.timeline.add(Interval(kind, name, row, start, stream.ready, moved, pinned))

    # Waits ----------------------------------------------------------------------------------------

    def wait_until(self, time: float, clock: Clock, name: str) -> None:
        """Block the calling thread until ``time``; afterwards it knows ``clock``."""
        host = self.host
        if time > host.time:
            self.spend(time - host.time, name)
        join(host.clock, clock)

    def wait_for_stream(self, stream: StreamState, name: str = "wait") -> None:
        self.wait_until(stream.ready, stream.clock, name)

    def wait_for_all(self) -> None:
        """Block until the device is idle."""
        for stream in self.streams:
            self.wait_for_stream(stream, "synchronize")

    @staticmethod
    def stream_waits(stream: StreamState, time: float, clock: Clock) -> None:
        """Later work of ``stream`` starts after ``time`` and knows ``clock``; the host does not wait."""
        stream.ready = max(stream.ready, time)
        join(stream.clock, clock)
