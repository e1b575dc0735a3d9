"""The public face: one simulated card, switched on for the length of a ``with`` block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

import torch

from . import threads
from .backend import register
from .machine import HandOff
from .memory import DeviceMemory
from .patches import Patches, install
from .profile import Profile, profile_named
from .runtime import DEVICE_TYPE, Runtime, activate
from .timeline import COMPUTE, TO_DEVICE, TO_HOST, Timeline


class Measurement:
    """What happened inside one ``with sim.measure()`` block; final when the block is left."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._mark = len(runtime.timeline)
        self._start = runtime.machine.host.time
        self.ms = 0.0

    def close(self) -> None:
        machine = self._runtime.machine
        self.ms = (max(machine.host.time, machine.stream.ready) - self._start) / 1000

    @property
    def kernels(self) -> int:
        return self._runtime.timeline.kernels(self._mark)

    @property
    def to_device(self) -> int:
        """Bytes copied from the host."""
        return self._runtime.timeline.moved(TO_DEVICE, self._mark)

    @property
    def to_device_pageable(self) -> int:
        return self._runtime.timeline.moved(TO_DEVICE, self._mark, pageable_only=True)

    @property
    def to_host(self) -> int:
        return self._runtime.timeline.moved(TO_HOST, self._mark)

    @property
    def overlap_ms(self) -> float:
        """Time during which a kernel ran while weights arrived."""
        return self._runtime.timeline.overlap(COMPUTE, TO_DEVICE, self._mark) / 1000


class Accelerator:
    """A simulated card. Switch it on with ``with``; one at a time per process.

    Args:
        profile: a card's name (``rtx4090``, ``h200``, ``rtx3060``) or a :class:`Profile`.
        cap: bytes of device memory; the card's own size by default.
        shapes: carry shapes only, so that models of real size cost no memory. Results read back as zeros
            (above 1 MiB: as whatever was there).
        strict_free: report memory freed under a pending use at once, not only when it is handed out again.
    """

    def __init__(
        self,
        profile: str | Profile = "rtx4090",
        *,
        cap: int | None = None,
        shapes: bool = False,
        strict_free: bool = False,
    ) -> None:
        self.profile = profile_named(profile)
        register()
        self.device = torch.device(DEVICE_TYPE, 0)
        total = self.profile.total_memory if cap is None else cap
        self._runtime = Runtime(self.profile, total, shapes, strict_free)
        self._patches = Patches()

    def __enter__(self) -> Accelerator:
        activate(self._runtime)
        install(self._patches)
        threads.install(self._patches, self._runtime.machine)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._patches.undo()
        activate(None)
        if kind is None:
            self._runtime.raise_pending()

    # Memory ---------------------------------------------------------------------------------------

    @property
    def memory(self) -> DeviceMemory:
        """Live, peak and reserved bytes, and ``report()`` of what is live and who made it."""
        return self._runtime.memory

    @property
    def cap(self) -> int:
        """Bytes of device memory. May be changed while the card is on."""
        return self._runtime.memory.cap

    @cap.setter
    def cap(self, size: int) -> None:
        self._runtime.memory.cap = size

    @property
    def pinned(self) -> int:
        """Bytes of pinned host memory."""
        return self._runtime.host.pinned

    @property
    def pin_limit(self) -> int | None:
        """Bytes of host memory that may be pinned; more is refused. None is no limit."""
        return self._runtime.host.pin_limit

    @pin_limit.setter
    def pin_limit(self, size: int | None) -> None:
        self._runtime.host.pin_limit = size

    def pin(self, block: torch.Tensor) -> bool:
        """Pin memory where it is, until it goes; False when :attr:`pin_limit` forbids it."""
        try:
            self._runtime.host.pin(block)
        except RuntimeError:
            return False
        return True

    # Time -----------------------------------------------------------------------------------------

    @property
    def clock(self) -> float:
        """Virtual time of the calling thread, in microseconds."""
        return self._runtime.machine.host.time

    @property
    def timeline(self) -> Timeline:
        """Every kernel, transfer and host wait so far."""
        return self._runtime.machine.timeline

    @contextmanager
    def measure(self) -> Iterator[Measurement]:
        """Time a block, in milliseconds until the host and the current stream are done."""
        measurement = Measurement(self._runtime)
        yield measurement
        measurement.close()

    @property
    def streams(self) -> int:
        """How many streams were made so far, the default stream included."""
        return len(self._runtime.machine.streams)

    def synchronize(self) -> None:
        """Wait for everything on the device."""
        self._runtime.machine.wait_for_all()

    # Threads --------------------------------------------------------------------------------------

    def hand_off(self) -> HandOff:
        """Mark the present of this thread, for :meth:`take_over` in another.

        Only needed where threads meet through something the simulator does not watch (see ``threads``).
        """
        return self._runtime.machine.hand_off()

    def take_over(self, token: HandOff) -> None:
        """Continue after ``token``: its time has passed here too, and its thread's work is ordered before."""
        self._runtime.machine.take_over(token)
