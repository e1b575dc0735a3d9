"""What runs have taught, kept for the next start: numbers of models on a machine, and where memory ran out.

Two servers may write at the same time, so what they know is merged: of two that say something of the same thing, the
later one is right. It is bounded: what was used longest ago goes first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from .margin import Margin

USES = 8
"""How many uses are remembered: the one that asked for most counts, so that two sizes in turn change nothing."""

TIMES = 16
"""How many different uses of a model are remembered with what they took."""

MODELS, WORKFLOWS = 128, 128
"""How many of each are kept."""

ALIKE = 1 / 64
"""Weights on the device that differ by no more than this share of the model make no other use of it."""


@dataclass(frozen=True)
class Timed:
    """What one run of a component took.

    Attributes:
        resolution: the class of what it was given (`resolution_class`), "" for a text.
        way: how it was placed, such as `layerwise pinned`.
        resident: the bytes of it that were on the device when it began to compute.
        calls: how often ComfyUI called it.
        computing: seconds from the beginning of each call to its end on the device, summed up.
        waiting: seconds of those in which nothing was computed, because weights were still on their way.
        moved: the bytes that were copied into slots.
        first: whether it was the first run since ComfyUI was started: files are read then, and memory is pinned.
        at: when, in seconds since 1970.
    """

    resolution: str
    way: str
    resident: int
    calls: int
    computing: float
    waiting: float
    moved: int
    first: bool
    at: float

    def kind(self, size: int) -> tuple[str, str, bool, int, int]:
        """Return what is the same for all uses of a component, of so many bytes, that should take as long."""
        return self.resolution, self.way, self.first, self.calls, int(self.resident / max(1, size) / ALIKE)


@dataclass(frozen=True)
class Lesson:
    """What is known of one model on one machine.

    Attributes:
        at: when it was used last, in seconds since 1970.
        bytes: the size of its weights.
        passes: how often its layers ran per use; None where no trace said so.
        demands: what ComfyUI asked for beside its weights in the last uses, the latest last.
        times: what its uses took, the latest last.
    """

    at: float
    bytes: int
    passes: int | None = None
    demands: tuple[int, ...] = ()
    times: tuple[Timed, ...] = ()

    def with_time(self, took: Timed) -> Lesson:
        """Return the same with what one more run took: the mean of that and of those before that were alike.

        No two runs are the same: which layers are still there from the last one differs. The last one counts half.
        """
        like = (one for one in self.times if one.kind(self.bytes) == took.kind(self.bytes))
        if (before := next(like, None)) is not None:
            took = replace(
                took,
                computing=(took.computing + before.computing) / 2,
                waiting=(took.waiting + before.waiting) / 2,
                moved=(took.moved + before.moved) // 2,
            )
        return replace(self, times=_latest((*self.times, took), self.bytes))

    def merged(self, other: Lesson) -> Lesson:
        """Return what both know; of two that differ the later one."""
        later = max(self, other, key=_order)
        return replace(later, times=_latest((*self.times, *other.times), later.bytes))


@dataclass(frozen=True)
class Learnt:
    """All that is kept: key → what is known of a model, and of a workflow that ran out of memory."""

    models: Mapping[str, Lesson] = field(default_factory=dict)
    margins: Mapping[str, Margin] = field(default_factory=dict)

    def merged(self, other: Learnt) -> Learnt:
        """Return what both know, within bounds."""
        models = dict(self.models)
        for key, lesson in other.models.items():
            models[key] = models[key].merged(lesson) if key in models else lesson
        margins = dict(self.margins)
        for key, margin in other.margins.items():
            margins[key] = max(margins[key], margin, key=_order) if key in margins else margin
        return Learnt(_newest(models, MODELS), _newest(margins, WORKFLOWS))


def model_key(kind: str, size: int, digest: str, machine: str, version: str) -> str:
    """Return the key of a model on a machine: its class, its bytes, a digest of names, shapes and types of weights."""
    return " | ".join((kind, str(size), digest, machine, version))


def workflow_key(models: Iterable[str]) -> str:
    """Return the key of a workflow: the models that it places, whatever their order."""
    return " || ".join(sorted(models))


def resolution_class(shape: Sequence[int]) -> str:
    """Return the class of a batch: each size rounded to a power of √2, without the channels.

    Args:
        shape: batch, channels, and the sizes of a latent or a picture.
    """
    sizes = (*shape[:1], *shape[2:])
    return "×".join(str(round(2 ** (round(2 * math.log2(max(1, size))) / 2))) for size in sizes)


def _order(one: Lesson | Margin) -> tuple[float, str]:
    return one.at, repr(one)  # what is of the same moment has an order, too, whoever merges it


def _latest(times: Iterable[Timed], size: int) -> tuple[Timed, ...]:
    """Return the latest of those that are alike, the latest last."""
    in_order = sorted(times, key=lambda took: (took.at, repr(took)))
    latest = {took.kind(size): took for took in in_order}
    return tuple(sorted(latest.values(), key=lambda took: (took.at, repr(took)))[-TIMES:])


_One = TypeVar("_One", Lesson, Margin)


def _newest(known: Mapping[str, _One], most: int) -> dict[str, _One]:
    kept = sorted(known, key=lambda key: (known[key].at, key), reverse=True)[:most]
    return {key: known[key] for key in sorted(kept)}
