"""What the engine did: transfers and layer runs, counted."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from .clock import Intervals, Stamp
from .lane import Told
from .spans import HOST, Spans, Track


def _nobody(number: int, count: int) -> None:
    """Hear nothing."""


@dataclass(eq=False)
class Ledger:
    """Totals of one component since it was attached, and those of its last run.

    Attributes:
        moved: host tier → bytes copied from it into slots.
        layer_runs: layer calls that ran under the engine.
        elsewhere: the device on which the last layer ran, if it was not the one that weights are brought to.
        slot_bytes: bytes that the component's slots take now.
        slot_peak: the most they have taken.
        waiting: how long computing has waited for what was to be copied, in the last run.
        component: the name of the component.
        spans: where what happens in this run is noted by name, if it is.
        on_layer: called when a layer begins to compute, with its number and how many there are.
    """

    moved: Counter[str] = field(default_factory=Counter)
    layer_runs: int = 0
    elsewhere: torch.device | None = None
    slot_bytes: int = 0
    slot_peak: int = 0
    waiting: Intervals = field(default_factory=Intervals)
    component: str = ""
    spans: Spans | None = None
    on_layer: Callable[[int, int], None] = _nobody
    _before: tuple[int, int] = (0, 0)

    @property
    def moved_bytes(self) -> int:
        """Bytes copied into slots."""
        return sum(self.moved.values())

    @property
    def moved_in_run(self) -> int:
        """The same, in the last run."""
        return self.moved_bytes - self._before[0]

    @property
    def runs_in_run(self) -> int:
        """Layer calls that ran under the engine, in the last run."""
        return self.layer_runs - self._before[1]

    def begin_run(self, spans: Spans | None = None) -> None:
        """Note that a run begins, and where what happens in it is noted by name."""
        self.waiting, self.spans = Intervals(), spans
        self._before = self.moved_bytes, self.layer_runs

    def record_move(self, tier: str, count: int) -> None:
        """Count bytes copied from a host tier into a slot."""
        self.moved[tier] += count

    def note(
        self,
        track: Track,
        device: str,
        layer: str,
        begin: Stamp,
        end: Stamp,
        moved: int = 0,
        tier: str = "",
    ) -> None:
        """Note what was done for a layer between two stamps; costs next to nothing, and waits for nothing."""
        if self.spans is not None:
            self.spans.add(track, device, self.component, layer, begin, end, moved, tier)

    def copy_of(self, layer: str, device: str, moved: int, source: str, *, background: bool = False) -> Told:
        """Return what notes when a layer was copied, and in the background also when the host was at it."""

        def told(begin: Stamp, end: Stamp, asked: float) -> None:
            self.note(Track.COPY, device, layer, begin, end, moved, source)
            if background:
                self.note(Track.READ, HOST, layer, asked, time.perf_counter(), moved, source)

        return told

    def record_slots(self, change: int) -> None:
        """Count slot memory that was allocated (positive) or given back (negative)."""
        self.slot_bytes += change
        self.slot_peak = max(self.slot_peak, self.slot_bytes)
