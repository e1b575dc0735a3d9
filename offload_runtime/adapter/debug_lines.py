"""The lines of the debug log: one per decision, and one per load and per unload of what our backends carry."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from ..engine import Streamer, parameter_bytes
from ..policy import format_bytes
from .record import record_of
from .where import bytes_by_place

if TYPE_CHECKING:
    from .dynamic_order import Place
    from .placed import Placed


def decision(placed: Placed) -> str:
    """Say what was asked for a component, by whom, and what came of it."""
    row, budget = placed.row(), placed.decision.budget_bytes
    if budget is None:
        budget = placed.decision.budget_asked
    return (
        f"{row.component} ({row.model}, {format_bytes(row.bytes)}): "
        f"asked {row.asked}{f' by {row.asked_by}' if row.asked_by else ''}; decided {row.decided}; "
        f"applied {row.applied}; {_budget(budget)}; host {row.host or '-'}; because {row.why}"
    )


def load(component: str, patcher: Any, streamer: Streamer) -> str:
    """Say which layers of a streamed component stay, and what it takes now that it is loaded."""
    stay = streamer.staying()
    where = ", ".join(
        f"{format_bytes(size)} in {place}" for place, size in bytes_by_place(patcher.model).items()
    )
    return (
        f"{component} loaded to {patcher.load_device}: {len(stay)} of {len(streamer.layers)} layers stay"
        f"{_named(layer.name for layer in stay)}; weights: {where}; slots of "
        f"{format_bytes(streamer.slot_bytes or streamer.footprint)}; "
        f"{format_bytes(record_of(patcher.model).masters.weights.pinned_bytes)} pinned"
    )


def unload(component: str, patcher: Any, streamer: Streamer) -> str:
    """Say that a streamed component leaves the device."""
    return f"{component} unloaded from {patcher.load_device}: slots of {format_bytes(streamer.slot_bytes)} given back"


def partial_unload(component: str, freed: int, asked: int) -> str:
    """Say how much a streamed component gave back of what ComfyUI wanted."""
    return f"{component} gave {format_bytes(freed)} back, {format_bytes(asked)} were asked for"


def paged_load(component: str, place: Place) -> str:
    """Say what holds for the pages of a component that ComfyUI pages in, now that it is loaded."""
    wish, where = place.wish, "at the end" if place.is_last else "at the front"
    tables = format_bytes(sum(map(parameter_bytes, place.tables)))
    return (
        f"{component} loaded to {place.device} by dynamic VRAM: {wish.placement}, {where} of the line; "
        f"{_budget(wish.budget)}; {tables} of token tables looked up in memory"
    )


def paged_unload(component: str, device: torch.device) -> str:
    """Say that ComfyUI lets go of a component that it pages in."""
    return f"{component} unloaded from {device} by dynamic VRAM"


def _budget(budget: int | None) -> str:
    return "no budget" if budget is None else f"budget {format_bytes(budget)}"


def _named(layers: Iterable[str]) -> str:
    """Return names as `: encoder.layers.0-3, 7`, or "" where there are none."""
    numbers: defaultdict[str, list[int]] = defaultdict(list)
    others: list[str] = []
    for name in layers:
        stack, _, last = name.rpartition(".")
        if last.isdecimal():
            numbers[stack].append(int(last))
        else:
            others.append(name)
    named = [f"{stack}.{', '.join(_ranges(found))}" for stack, found in numbers.items()]
    return "".join([": ", "; ".join(named + others)]) if named or others else ""


def _ranges(numbers: Iterable[int]) -> list[str]:
    """Return numbers with what follows on each other as one: 0, 1, 2, 5 → `0-2`, `5`."""
    runs = itertools.groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0])
    spans = [[number for _, number in run] for _, run in runs]
    return [str(span[0]) if len(span) == 1 else f"{span[0]}-{span[-1]}" for span in spans]
