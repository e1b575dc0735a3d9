"""What the uses of a model took, in the last run that it computed in: seconds, and memory of the device.

Nothing waits for anything: the time is that of events on the device, and it is read when somebody asks.
"""

from __future__ import annotations

import time
import weakref

import torch
from torch import nn

from ..engine import Ledger
from ..engine.clock import Clock, Intervals, Stamp
from ..policy import Measured
from .runs import Card, Run, current_run, held_of

_OFTEN = 0.03
"""Seconds of the host after which a look at the memory, of a quarter of a millisecond, costs less than 1 %."""


class Uses:
    """The uses of one model.

    Attributes:
        ledgers: those of its placements, which are told when a run begins.
        run: the last run that it computed in, or None.
        computing: how long it computed in that run, waiting for weights included.
        peak: the most memory of the device that was in use while it computed in that run.
        first: when it began to compute in that run.
        last: when it was done.
        held: what ComfyUI had of it on the device when it last computed, in bytes, or None where it does not list it.
    """

    def __init__(self, model: weakref.ref[nn.Module]) -> None:
        self._model = model
        self.ledgers: weakref.WeakSet[Ledger] = weakref.WeakSet()
        self.run: Run | None = None
        self.computing = Intervals()
        self.peak = 0
        self.first: Stamp | None = None
        self.last: Stamp | None = None
        self.held: int | None = None
        self._device = torch.device("cpu")
        self._clock: Clock | None = None
        self._card: Card | None = None
        self._outer: tuple[Run, object] | None = None
        self._begin: Stamp | None = None
        self._looked, self._looked_at = True, 0.0

    def begin(self, who: object, device: torch.device) -> None:
        """Hear that a call begins, unless it is inside of another one."""
        run = current_run()
        if self._outer is not None and self._outer[0] is run and self._outer[1] is not who:
            return  # the same one again has been interrupted, and so has one of an earlier run
        if run is not self.run:
            self._begin_run(run, device)
        self._outer = run, who
        if run.computing is not self:
            self._take_turn(run)
        if self._clock is not None:
            self._begin = self._clock.stamp()
            self.first = self.first if self.first is not None else self._begin

    def end(self, who: object) -> None:
        """Hear that a call ends."""
        if self._outer is None or self._outer[1] is not who:
            return
        self._outer = None
        if self._clock is not None:
            self.last = self._clock.stamp()
            self.computing.add(self._begin, self.last)
        count, now = self.computing.count, time.perf_counter()
        self._looked = not count & (count - 1) or now - self._looked_at > _OFTEN
        if self._looked:
            self._looked_at = now
            self.look()
            self.held = held_of(self._model(), self._device)

    def look(self) -> None:
        """Take the most memory that was in use since the last look as that of this model."""
        if self._card is not None:
            self.peak = max(self.peak, self._card.look(self._model()))

    def ran_short(self, who: object) -> None:
        """Hear that a call ends because memory has run out."""
        model = self._model()
        if self._outer is not None and self._outer[1] is who and self.run is not None and model is not None:
            self.run.short.add(model)

    def _take_turn(self, run: Run) -> None:
        """Begin to compute when another model has, or none."""
        before, run.computing = run.computing, self
        if before is not None and not before._looked:
            before.look()
        elif self._card is not None:
            self._card.look(None)

    def measured(self, ledger: Ledger) -> Measured | None:
        """Return what was measured in the last run, or None before the first one; waits for what computes.

        Args:
            ledger: that of the placement which is asked about.
        """
        if self.run is None:
            return None
        if not self._looked:
            self._looked = True
            self.look()
        moments = None
        if self.first is not None and self.last is not None:
            moments = (
                self.run.seconds_at(self._device, self.first),
                self.run.seconds_at(self._device, self.last),
            )
        return Measured(
            in_this_run=self.run is current_run(),
            calls=self.computing.count,
            computing=self.computing.seconds,
            waiting=ledger.waiting.seconds,
            moments=moments,
            moved_bytes=ledger.moved_in_run,
            layer_runs=ledger.runs_in_run,
            peak_bytes=self.peak,
        )

    def _begin_run(self, run: Run, device: torch.device) -> None:
        self.run, self._device, self._clock, self._card = run, device, run.clock(device), run.card(device)
        self.computing, self.peak, self.first, self.last, self.held = Intervals(), 0, None, None, None
        for ledger in self.ledgers:
            ledger.begin_run()
