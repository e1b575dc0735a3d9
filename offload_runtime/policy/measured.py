"""What was measured while a workflow ran: seconds and bytes, never a promise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from .quantities import format_bytes

_NOTICEABLE = 0.02
"""A share of the time that is worth a word."""


@dataclass(frozen=True)
class Measured:
    """One component in the last run that it computed in.

    Attributes:
        in_this_run: whether that is the run of the report; if not, what it made was still known.
        calls: how often ComfyUI called it: a text, a step, a tile.
        computing: seconds from the beginning of a call to its end on the device, summed up.
        waiting: seconds of those in which nothing was computed, because weights were still on their way.
        moments: seconds after the beginning of the run at which the first call began and the last one ended, or None
            where the device does not tell the time.
        moved_bytes: bytes that were copied into layer slots.
        layer_runs: layer calls that ran under the engine.
        peak_bytes: the most memory of the device that was in use while it computed; 0 where nobody counts.
        predicted: the seconds of computing that earlier runs let expect, or None where none was comparable.
    """

    in_this_run: bool
    calls: int
    computing: float
    waiting: float
    moments: tuple[float, float] | None
    moved_bytes: int
    layer_runs: int
    peak_bytes: int
    predicted: float | None = None

    def says(self) -> Iterator[str]:
        """Yield what a person wants to know, as clauses."""
        if not self.in_this_run:
            yield "not used in this run, and before that"
        if self.moments is not None:
            took = format_seconds(self.computing)
            yield f"computed for {took}" if self.calls == 1 else f"computed for {took} in {self.calls} calls"
            if self.moved_bytes:
                yield self._waited()
            if self.predicted is not None:
                yield f"predicted {format_seconds(self.predicted)}"
        if self.layer_runs:
            yield f"{format_bytes(self.moved_bytes)} moved in {self.layer_runs} layer runs"
        elif self.moved_bytes:
            yield f"{format_bytes(self.moved_bytes)} moved operation by operation"
        if self.peak_bytes:
            yield f"{format_bytes(self.peak_bytes)} of the device in use at the peak"

    def _waited(self) -> str:
        if self.waiting <= _NOTICEABLE * self.computing:
            return "transfers did not hold it up"
        return f"{format_seconds(self.waiting)} of that waiting for weights"


@dataclass(frozen=True)
class CardPeak:
    """A device when the most of it was in use in a run, in bytes. What is not named is what was computed with.

    Attributes:
        device: the device, as torch spells it.
        total: its memory.
        used: what of it was in use.
        name: what its maker calls it, or "".
        other: what of that belonged to no model when the run began.
        models: the name of each model that was there → its weights there, and its slots.
        during: the component that computed, or "" when none of those that are placed did.
    """

    device: str
    total: int
    used: int
    name: str = ""
    other: int = 0
    models: dict[str, int] = field(default_factory=dict)
    during: str = ""

    @property
    def computing(self) -> int:
        """What computing took beside weights: activations, and what is being loaded."""
        return max(0, self.used - self.other - sum(self.models.values()))

    def text(self) -> str:
        """Return one line for people."""
        parts = [f"{name} {format_bytes(size)}" for name, size in self.models.items() if size]
        beside = format_bytes(self.computing)
        if self.computing:
            parts.append(f"{self.during} computing {beside}" if self.during else f"loading {beside}")
        parts += [f"other {format_bytes(self.other)}"] if self.other else []
        return (
            f"peak of {self.name or self.device}: {format_bytes(self.used)} of {format_bytes(self.total)} in use: "
            f"{', '.join(parts)}"
        )


def format_seconds(seconds: float) -> str:
    """Return a time for people: milliseconds below a second, tenths of seconds below a minute."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s"
