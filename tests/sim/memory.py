"""Device memory: live, peak and reserved bytes, the cap, reuse hazards, and who still holds what.

Bytes are counted per allocation (a storage), rounded as CUDA's caching allocator rounds. Freed memory stays
reserved in the pool of the stream it was allocated on. Fragmentation is not modelled: a pool is a heap of
runs that can be split and joined at will.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from .machine import Machine, StreamState
from .order import Access, Actor, Clock, FreedWhileUsed, SimulationFault, join
from .ranges import RangeHistory, note_last
from .site import Site

_GRAIN = 512
_BASE_ADDRESS = 1 << 44
_WEIGHT_THRESHOLD = 4096
_MIB = 1 << 20


@dataclass(slots=True)
class Record:
    """What the allocator knows of one allocation."""

    serial: int
    address: int
    wanted: int
    size: int
    stream: int
    site: Site
    history: RangeHistory
    recorded_on: set[int] = field(default_factory=set)
    weight: bool = False

    def __str__(self) -> str:
        return f"{self.wanted} bytes allocated on stream {self.stream} at {self.site}"


class Block:
    """A handle on one allocation, shared by all tensors that view it; the last one to go frees it."""

    __slots__ = ("__weakref__", "memory", "record")

    def __init__(self, memory: DeviceMemory, record: Record) -> None:
        self.memory, self.record = memory, record

    def __del__(self) -> None:
        self.memory.release(self.record)


@dataclass(slots=True)
class _Run:
    """Bytes in a pool, and the uses of their last owner that may still be under way: on other streams, or on any."""

    size: int
    pending: list[Access]
    last: dict[Actor, Access]
    owner: Record


class DeviceMemory:
    """The allocator of the simulated card."""

    def __init__(self, machine: Machine, cap: int, strict_free: bool = False) -> None:
        self._machine = machine
        self.cap = cap
        self.strict_free = strict_free
        #: Faults found where nothing can be raised (a destructor); the next operation raises the first one.
        self.unraised: list[SimulationFault] = []
        self.live = self.peak = self.reserved_peak = 0
        #: The same as torch counts it: code under test may read it and set it back.
        self.torch_peak = self.torch_reserved_peak = 0
        self.weights = self.weights_peak = 0
        self.allocations = 0
        self._records: dict[int, Record] = {}
        self._pools: dict[int, list[_Run]] = defaultdict(list)
        self._pooled = 0
        self._deferred: list[tuple[float, Record]] = []
        self._next_address = _BASE_ADDRESS
        #: Asked for bytes before an allocation fails; each says whether it freed any.
        self.pressure: list[Callable[[int], bool]] = []

    # Figures --------------------------------------------------------------------------------------

    @property
    def reserved(self) -> int:
        """Live bytes plus what the pools keep."""
        return self.live + self._pooled

    @property
    def free(self) -> int:
        """What the driver would call free: the cap less everything reserved."""
        return max(0, self.cap - self.reserved)

    def reset_peak(self) -> None:
        self.peak, self.weights_peak, self.reserved_peak = self.live, self.weights, self.reserved

    def reset_torch_peak(self) -> None:
        self.torch_peak, self.torch_reserved_peak = self.live, self.reserved

    def report(self, since: int = 0) -> str:
        """The live allocations by the place that made them, biggest first; empty when nothing is live.

        Args:
            since: only allocations made after :attr:`allocations` had this value.
        """
        places: dict[str, list[int]] = defaultdict(list)
        for serial, record in self._records.items():
            if serial > since:
                places[str(record.site)].append(record.size)
        ranked = sorted(places.items(), key=lambda place: (-sum(place[1]), place[0]))
        return "\n".join(
            f"{sum(sizes)} bytes in {len(sizes)} allocations at {site}" for site, sizes in ranked
        )

    # Allocation -----------------------------------------------------------------------------------

    def allocate(self, wanted: int) -> Block:
        """Take ``wanted`` bytes on the current stream.

        Raises:
            torch.OutOfMemoryError: the cap does not allow it, even with all pools emptied.
            FreedWhileUsed: the bytes come from a pool while another stream may still use them.
        """
        stream = self._machine.stream
        size = -(-wanted // _GRAIN) * _GRAIN
        self._collect_deferred(self._machine.host.time)
        pooled = sum(run.size for run in self._pools[stream.index])
        if self.reserved + max(0, size - pooled) > self.cap:
            self._make_room(wanted, size)
        site = Site.here()
        former = self._take_from_pool(stream, size, site)
        self._grow(size)
        return self._register(wanted, size, site, former)

    def note_weight(self, record: Record, moved: int) -> None:
        """Count an allocation as holding weights once a page or more was copied into it from the host."""
        if moved >= _WEIGHT_THRESHOLD and not record.weight:
            record.weight = True
            self.count_weights(record.size)

    def count_weights(self, change: int) -> None:
        """Weight bytes came or went."""
        self.weights += change
        self.weights_peak = max(self.weights_peak, self.weights)

    # Addresses apart from memory --------------------------------------------------------------------

    def reserve_addresses(self, size: int) -> Block:
        """A range of addresses without memory behind it; :meth:`commit` counts what is put there."""
        return self._register(size, 0, Site.here())

    def commit(self, size: int) -> bool:
        """Count ``size`` bytes as in use, unless the cap forbids it."""
        if self.reserved + size > self.cap:
            return False
        self._grow(size)
        return True

    def commit_under_pressure(self, size: int) -> bool:
        """The same, after asking whoever can give bytes back."""
        while not self.commit(size):
            if not any(relieve(self.reserved + size - self.cap) for relieve in self.pressure):
                return False
        return True

    def decommit(self, size: int) -> None:
        self.live -= size

    def _grow(self, size: int) -> None:
        self.live += size
        self.peak, self.torch_peak = max(self.peak, self.live), max(self.torch_peak, self.live)
        self.reserved_peak = max(self.reserved_peak, self.reserved)
        self.torch_reserved_peak = max(self.torch_reserved_peak, self.reserved)

    def _register(
        self, wanted: int, size: int, site: Site, former: dict[Actor, Access] | None = None
    ) -> Block:
        self.allocations += 1
        stream = self._machine.stream.index
        history = RangeHistory(max(wanted, 1), former)
        record = Record(self.allocations, self._next_address, wanted, size, stream, site, history)
        self._next_address += -(-wanted // _GRAIN) * _GRAIN + _GRAIN
        self._records[record.serial] = record
        return Block(self, record)

    def empty_cache(self) -> None:
        """Give every pool back to the driver. Like ``cudaFree`` it waits for the device."""
        self._machine.wait_for_all()
        self._collect_deferred(self._machine.host.time)
        self._pools.clear()
        self._pooled = 0

    def _make_room(self, wanted: int, size: int) -> None:
        if self._pooled or self._deferred:
            self.empty_cache()
        while self.live + size > self.cap and any(
            relieve(self.live + size - self.cap) for relieve in self.pressure
        ):
            pass
        if self.live + size > self.cap:
            raise torch.OutOfMemoryError(
                f"SIM out of memory. Tried to allocate {wanted / _MIB:.2f} MiB. The simulated card has "
                f"{self.cap / _MIB:.2f} MiB, of which {self.live / _MIB:.2f} MiB are in use.\n{self.report()}"
            )

    def _take_from_pool(self, stream: StreamState, size: int, site: Site) -> dict[Actor, Access]:
        """Reuse pooled bytes: the smallest run that is big enough, else several, biggest first.

        Returns their last uses: work of the same stream comes after them, that of another may not.
        """
        former: dict[Actor, Access] = {}
        pool = self._pools[stream.index]
        clock: Clock = dict(stream.clock)
        join(clock, self._machine.host.clock)
        while size > 0 and pool:
            fitting = [run for run in pool if run.size >= size]
            run = min(fitting, key=lambda run: run.size) if fitting else max(pool, key=lambda run: run.size)
            for use in run.pending:
                if not use.known_to(clock):
                    later = f"the next owner, {size} bytes on stream {stream.index} at {site}"
                    raise FreedWhileUsed("Memory is reused while in use", use, later, str(run.owner))
            note_last(former, run.last.values())
            taken = min(run.size, size)
            size -= taken
            run.size -= taken
            self._pooled -= taken
            if not run.size:
                pool.remove(run)
        return former

    # Release --------------------------------------------------------------------------------------

    def release(self, record: Record) -> None:
        """Called when the last tensor on an allocation dies, on whatever thread that happens."""
        with self._machine.lock:
            streams = self._machine.streams
            if others := record.recorded_on - {record.stream}:
                self._deferred.append((max(streams[index].ready for index in others), record))
            else:
                self._return(record)

    def _return(self, record: Record) -> None:
        del self._records[record.serial]
        self.live -= record.size
        if record.weight:
            self.count_weights(-record.size)
        clock = dict(self._machine.streams[record.stream].clock)
        join(clock, self._machine.host.clock)
        pending = [
            use
            for use in record.history.unfinished(clock)
            if not (use.actor[0] == "stream" and use.actor[1] in record.recorded_on)
        ]
        if record.size:
            over = {
                ("stream", index) for index in record.recorded_on - {record.stream}
            }  # waited for before this
            last = {actor: use for actor, use in record.history.last_uses().items() if actor not in over}
            self._pools[record.stream].append(_Run(record.size, pending, last, record))
            self._pooled += record.size
        if pending and self.strict_free:
            self.unraised.append(
                FreedWhileUsed(
                    "Memory is freed while in use", pending[0], f"its release at {Site.here()}", str(record)
                )
            )

    def _collect_deferred(self, now: float) -> None:
        """Return what ``record_stream`` held back and whose streams have passed the point of the free."""
        due = [record for until, record in self._deferred if until <= now]
        self._deferred = [(until, record) for until, record in self._deferred if until > now]
        for record in due:
            self._return(record)
