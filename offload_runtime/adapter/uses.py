"""What the uses of a model took, in the last run that it computed in: seconds, and memory of the device.

Nothing waits for anything: the time is that of events on the device, and it is read when somebody asks.
"""

from __future__ import annotations

import time
import weakref
from typing import Any

import torch
from torch import nn

from .. import live
from ..engine import Ledger, parameter_bytes
from ..engine.clock import Clock, Intervals, Stamp
from ..engine.spans import HOST, Track
from ..policy import Measured
from ..policy.components import is_encoder
from ..policy.learnt import Timed
from ..policy.predict import predicted
from .progress import show_layer
from .runs import Card, Run, current_run, held_of

_OFTEN = 0.03
"""Seconds of the host after which a look at the memory, of a quarter of a millisecond, costs less than 1 %."""


class Uses:
    """The uses of one model.

    Attributes:
        ledgers: those of its placements, which are told when a run begins.
        component: the name that it was last placed by.
        bytes: its size.
        run: the last run that it computed in, or None.
        computing: how long it computed in that run, waiting for weights included.
        peak: the most memory of the device that was in use while it computed in that run.
        need: what of that belonged to no model: what it computed with.
        first: when it began to compute in that run.
        last: when it was done.
        way: how it is placed, in words.
        times: what its runs took, those before ComfyUI was started included.
        known: the same before the last run.
        failed: whether it ran out of memory in that run.
        held: what ComfyUI had of it on the device when it last computed, in bytes, or None where it does not list it.
    """

    def __init__(self, model: weakref.ref[nn.Module]) -> None:
        self._model = model
        self.ledgers: weakref.WeakSet[Ledger] = weakref.WeakSet()
        self.component, self.bytes = "", 0
        self.run: Run | None = None
        self.computing = Intervals()
        self.peak = self.need = 0
        self.first: Stamp | None = None
        self.last: Stamp | None = None
        self.way = ""
        self.times: tuple[Timed, ...] = ()
        self.failed = False
        self.known: tuple[Timed, ...] = ()
        self._resident = 0  # bytes of the model that were on the device when it began
        self._first_run: Run | None = None
        self._inputs: tuple[Run, set[str]] | None = None
        self.held: int | None = None
        self._device = torch.device("cpu")
        self._clock: Clock | None = None
        self._card: Card | None = None
        self._outer: tuple[Run, object] | None = None
        self._begin: Stamp | None = None
        self._called = 0.0  # when the host began the call
        self._looked, self._looked_at = True, 0.0

    def placed_as(self, component: str, size: int, ledger: Ledger) -> None:
        """Hear of a placement, and let its ledger note what happens in the run that goes on."""
        self.component, self.bytes = component, size
        ledger.component = component
        self.ledgers.add(ledger)
        reference = weakref.ref(ledger)
        ledger.on_layer = lambda number, count: self._tell_layer(reference, number, count)
        if self.run is not None:
            ledger.spans = self.run.spans

    @property
    def model(self) -> nn.Module | None:
        """The model, as long as somebody uses it."""
        return self._model()

    def note_input(self, what: str) -> None:
        """Note the class of what it is going to be given."""
        run = current_run()
        if self._inputs is None or self._inputs[0] is not run:
            self._inputs = run, set()
        self._inputs[1].add(what)

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
            self._called = time.perf_counter()
            self._begin = self._clock.stamp()
            self.first = self.first if self.first is not None else self._begin
        self.tell(live.COMPUTING)

    def end(self, who: object) -> None:
        """Hear that a call ends."""
        if self._outer is None or self._outer[1] is not who:
            return
        self._outer = None
        self.tell()
        if self._clock is not None:
            self.last = self._clock.stamp()
            self.computing.add(self._begin, self.last)
            self._note()
        count, now = self.computing.count, time.perf_counter()
        self._looked = not count & (count - 1) or now - self._looked_at > _OFTEN
        if self._looked:
            self._looked_at = now
            self.look()
            self.held = held_of(self._model(), self._device)

    def tell(self, doing: str = "", **more: int) -> None:
        """Tell whoever watches the run what is done for this model now; nothing by default."""
        if live.is_heard():
            live.tell(lambda: current_run().told(self.component, doing, **more))

    def _tell_layer(self, ledger: weakref.ref[Ledger], number: int, count: int) -> None:
        # The first time its weights come from the disk; a VAE and a sampler move ComfyUI's bar by themselves.
        if self._first_run is self.run and is_encoder(self.component):
            show_layer(number, count)
        if not live.is_heard():
            return

        def told() -> dict[str, Any]:
            of = ledger()
            moved = of.moved_in_run if of is not None else 0
            more = {"layer": number, "layers": count, "moved": moved}
            return current_run().told(self.component, live.STREAMING, **more)

        live.tell(told)

    def _note(self) -> None:
        """Note the call that ends: on the device, and on the host where that runs ahead of it."""
        run = self.run
        assert run is not None
        run.spans.add(Track.COMPUTE, str(self._device), self.component, "", self._begin, self.last)
        if self._device.type != "cpu":
            now = time.perf_counter()
            run.spans.add(Track.CALL, HOST, self.component, "", self._called, now)

    def ran_out(self) -> None:
        """Note that the run ended for want of memory: how long it took says nothing."""
        self.failed = True

    def look(self) -> None:
        """Take the most memory that was in use since the last look as that of this model."""
        if self._card is None:
            return
        used = self._card.look(self._model())
        if used > self.peak:
            self.peak, self.need = used, self._card.beside(used)

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
            predicted=self._predicted(),
        )

    def took(self) -> Timed | None:
        """Return what the last run took, as it is remembered; None where the device does not tell the time."""
        if self.run is None or self._clock is None or not self.computing.count:
            return None
        inputs = self._inputs[1] if self._inputs is not None and self._inputs[0] is self.run else ()
        return Timed(
            resolution=" + ".join(sorted(inputs)),
            way=self.way,
            resident=self._resident,
            calls=self.computing.count,
            computing=self.computing.seconds,
            waiting=sum(ledger.waiting.seconds for ledger in self.ledgers),
            moved=sum(ledger.moved_in_run for ledger in self.ledgers),
            first=self._first_run is self.run,
            at=self.run.began,
        )

    def _predicted(self) -> float | None:
        """Return how long the last run should have taken, by what was known before it."""
        took, model = self.took() if self.known else None, self._model()
        if took is None or model is None:
            return None
        from .machine import link_from  # only who has something to predict needs what checks a machine

        link = link_from(self.way.rpartition(" ")[2])
        return predicted(self.known, took, parameter_bytes(model), link=link)

    def _begin_run(self, run: Run, device: torch.device) -> None:
        self._first_run = self._first_run or run
        self.run, self._device, self._clock, self._card = run, device, run.clock(device), run.card(device)
        self.computing, self.peak, self.first, self.last = Intervals(), 0, None, None
        self.need, self.held = 0, None
        self.known, self.failed = self.times, False
        self._resident = held_of(self._model(), device) or 0
        for ledger in self.ledgers:
            ledger.begin_run(run.spans)
