"""What could hold less of the device, after a run in which somebody lacked the room."""

from __future__ import annotations

from collections.abc import Iterator

from .components import Placement, group_of
from .quantities import format_bytes
from .settings import Setting
from .suggestions import MOST, ROOM, Decided, Option, RanFacts, RunFacts, Suggestion, placements, you_set

_MAY_GIVE = (Placement.AUTO, Placement.RESIDENT)
"""The placements that hold what others may need."""


def makes_room(run: RunFacts) -> list[Suggestion]:
    """Return what could hold less, cumulative; nothing where every component had the room it needed."""
    lacking = [ran for ran in run.ran if ran.short or ran.partly]
    if not lacking:
        return []
    found: list[Suggestion] = []
    options: tuple[Option, ...] = ()
    decided: Decided = {ran.name: ran.decision for ran in run.ran}
    missing = _missing(lacking)
    for ran in _who_gives(run, lacking):
        if len(found) == MOST or (missing is not None and missing <= 0):
            break
        for one in (*placements(ran, Placement.LAYERWISE), *placements(ran, Placement.OFFLOAD)):
            then = run.decide(tuple(o.argument for o in (*options, one)))
            freed = _freed(run, decided, then) if then is not None else 0
            if then is None or then[ran.name].limits or not _is_worth(ran, freed, lacking):
                continue
            found.append(one.suggestion(ROOM, ran.name, -freed, None, _why(run, ran, lacking)))
            options, decided = (*options, one), then
            missing = missing - freed if missing is not None else None
            break
    return found


def _missing(lacking: list[RanFacts]) -> int | None:
    """Return how much room was lacking, or None where memory ran out, which does not say by how much."""
    if any(ran.short for ran in lacking):
        return None
    return max(ran.whole - ran.held for ran in lacking)


def _is_worth(ran: RanFacts, freed: int, lacking: list[RanFacts]) -> bool:
    """Tell whether less is copied in a run, by how often each was called, or memory had run out anyway."""
    if freed <= 0 or any(one.short for one in lacking):
        return freed > 0
    spared = max(min(freed, one.whole - one.held) * _calls(one) for one in lacking)
    return spared > freed * _calls(ran)


def _calls(ran: RanFacts) -> int:
    return max(1, ran.measured.calls) if ran.measured is not None and ran.measured.in_this_run else 1


def _who_gives(run: RunFacts, lacking: list[RanFacts]) -> Iterator[RanFacts]:
    """Yield who may hold less: encoders before a VAE, the largest first; what lacked the room itself comes last.

    A diffusion model is not streamed for others: ComfyUI takes of it what they need, for as long as they run.
    """
    able = [r for r in run.ran if r.decision.placement in _MAY_GIVE and r.decision.device != "cpu"]
    others = [ran for ran in able if ran not in lacking and group_of(ran.name) != "dit"]
    yield from sorted(others, key=lambda ran: (-ran.turn[0], -ran.held, ran.name))
    yield from (ran for ran in able if ran.short)


def _freed(run: RunFacts, before: Decided, after: Decided) -> int:
    """Return the device memory that is held no more; less than nothing where somebody would hold more."""
    total = 0
    for ran in run.ran:
        had, has = before[ran.name], after[ran.name]
        if (had.placement, had.planned_bytes) == (has.placement, has.planned_bytes):
            continue
        if has.planned_bytes > had.planned_bytes and (ran.short or ran.partly):
            continue  # what it gets of it is what the room is made for
        total += (ran.held if had is ran.decision else had.held_bytes) - has.held_bytes
    return total


def _why(run: RunFacts, ran: RanFacts, lacking: list[RanFacts]) -> str:
    clauses = []
    for one in lacking:
        if one.short:
            clauses.append(f"memory ran out while {one.name} computed")
        else:
            left = format_bytes(one.whole - one.held)
            clauses.append(
                f"there was no room for {left} of {one.name}, so ComfyUI copied them for each step"
            )
    return "; ".join([" and ".join(clauses), *you_set(run, ran, Setting.PLACEMENT)])
