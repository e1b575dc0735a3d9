"""Random policies on random machines: what a case is, how cases follow from a seed, and the simplest that still fails.

Plain seeded numbers and no hypothesis: drawing a case costs hypothesis as much as checking it, and it keeps what it
drew. A case is printed as the call that makes it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, NamedTuple

import torch

CASES = int(os.environ.get("LAYERWISE_CASES", "2000"))
"""Of each memory manager in each version."""

SEED = int(os.environ.get("LAYERWISE_SEED", "0"))
BATCH = 50
"""Cases of one test: one simulated card, one ComfyUI and the same models. What these remember grows with every case."""

BATCHES = range(-(-CASES // BATCH))

NAMES = {"model": "diffusion_model", "clip": "text_encoder", "vae": "vae"}
FAMILIES: dict[str, tuple[dict[str, Any], ...]] = {
    "clip": ({"count": 5, "table": 3}, {"count": 3}, {"count": 3, "dtype": torch.float32}),
    "model": ({"count": 6}, {"count": 4, "always": 2}),
    "vae": ({"count": 2}, {"count": 1}),  # one layer is no stack: it cannot be streamed
}
PLACEMENTS = ("auto", "resident", "offload", "layerwise", "cpu")
MODES = ("auto", "manual", "speed", "memory")
STATES = ("NORMAL_VRAM", "NORMAL_VRAM", "NO_VRAM")
LEAST, MOST = 0.05, 1.3
"""Of a budget, as a share of what it is for."""


class Case(NamedTuple):
    """One policy on one machine, for two prompts. Shares are of a component's, or of all their, size.

    A sampler asks for the demand beside the diffusion model, and the second prompt is decided with that known.
    """

    families: dict[str, int]
    placements: dict[str, str]
    budgets: dict[str, float]
    total: float | None
    mode: str
    room: float
    state: str
    order: list[str]
    demand: float = 0.0


_UNSET = {"clip": "auto", "model": "auto", "vae": "auto"}
SEEN = (
    # A diffusion model that ran once gave its share of the total up on paper, and the encoder took it for real.
    Case(
        {"clip": 0, "model": 0, "vae": 1},
        _UNSET,
        {},
        0.41,
        "auto",
        3.0,
        "NORMAL_VRAM",
        ["clip", "model", "vae"],
    ),
)
"""Cases that have failed, and are too rare for the first random ones."""


def batch(number: int) -> list[Case]:
    """Return the cases of one test; a machine of another version draws the same."""
    random = Random(f"{SEED}/{number}")
    drawn = [draw(random) for _ in range(min(BATCH, CASES - number * BATCH))]
    return drawn if number else [*SEEN, *drawn]


def draw(random: Random) -> Case:
    families = {slot: random.randrange(len(of)) for slot, of in FAMILIES.items()}
    placements = {slot: random.choice(PLACEMENTS) for slot in FAMILIES}
    budgets = {slot: share(random) for slot in FAMILIES if random.random() < 0.4}
    total = share(random) if random.random() < 0.5 else None
    mode, room, state = random.choice(MODES), random.uniform(0.7, 3.0), random.choice(STATES)
    order, demand = random.sample(list(FAMILIES), 3), random.choice((0.0, 0.0, 0.2, 0.8))
    return Case(families, placements, budgets, total, mode, room, state, order, demand)


def share(random: Random) -> float:
    """Return a budget: often one of the borders, where what is compared is equal."""
    return random.choice((LEAST, 0.5, 1.0, MOST)) if random.random() < 0.2 else random.uniform(LEAST, MOST)


def simplest(case: Case, fails: Callable[[Case], bool]) -> Case | None:
    """Return what is left of a failing case when nothing more can be left out; None if it does not fail again."""
    if not fails(case):
        return None
    while simpler := next((other for other in _simpler(case) if fails(other)), None):
        case = simpler
    return case


def _simpler(case: Case) -> Iterator[Case]:
    """Each without one of the things that were asked for, or with a simpler one."""
    for slot in case.budgets:
        yield case._replace(budgets={other: of for other, of in case.budgets.items() if other != slot})
    for slot in FAMILIES:
        if case.placements[slot] != "auto":
            yield case._replace(placements=case.placements | {slot: "auto"})
        if case.families[slot]:
            yield case._replace(families=case.families | {slot: 0})
    plain = {"total": None, "mode": "auto", "state": "NORMAL_VRAM", "order": list(FAMILIES), "room": 3.0}
    plain["demand"] = 0.0
    for name, value in plain.items():
        if getattr(case, name) != value:
            yield case._replace(**{name: value})
    for slot, of in case.budgets.items():
        if of != round(of, 2):
            yield case._replace(budgets=case.budgets | {slot: round(of, 2)})
    for name in ("total", "room"):
        of = getattr(case, name)
        if of is not None and of != round(of, 2):
            yield case._replace(**{name: round(of, 2)})
