"""What could stay on the device, from memory that was free at the peak of a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .components import Mode, Placement
from .decision import Decision
from .measured import format_seconds
from .quantities import Budget, format_bytes
from .settings import Setting
from .suggestions import (
    LIFT,
    MOST,
    Decided,
    Option,
    RanFacts,
    RunFacts,
    Suggestion,
    option,
    placements,
    you_set,
)

_NOTICEABLE = 0.01
"""A share of the time of a run that is worth a suggestion."""

_PART = 0.05
"""A share of a component that is worth a budget."""

MB, GB = 1024**2, 1024**3


class _Now(NamedTuple):
    """What is in force once the suggestions so far are applied. Sizes are bytes.

    Attributes:
        decided: what is decided then.
        held: component name → device memory that it takes then.
        free: device memory that is left then.
    """

    decided: Decided
    held: dict[str, int]
    free: int


def lifts(run: RunFacts) -> list[Suggestion]:
    """Return what could stay on the device, cumulative: each counts those before it as applied."""
    found: list[Suggestion] = []
    arguments: tuple[Option, ...] = ()
    now = _Now({r.name: r.decision for r in run.ran}, {r.name: r.held for r in run.ran}, run.free)
    for ran in sorted(filter(lambda one: _waits(run, one), run.ran), key=lambda one: one.turn):
        if len(found) == MOST:
            break
        if _is_whole(ran, now.decided[ran.name]):
            continue  # an earlier one is for its whole group
        for one in _options(run, ran, now):
            then = _applied(run, (*arguments, one), now)
            if then is None or not _helps(ran, now, then):
                continue
            arguments = (*arguments, one)
            size, seconds = now.free - then.free, _saved(run, then) - _saved(run, now)
            found.append(one.suggestion(LIFT, ran.name, size, seconds, _why(run, ran, now, one)))
            now = then
            break
    return found


def _waits(run: RunFacts, ran: RanFacts) -> bool:
    """Tell whether a component is moved, and waited for that long enough to be worth a word."""
    measured = ran.measured
    if measured is None or not measured.in_this_run or ran.decision.device == "cpu":
        return False
    return measured.waiting > _NOTICEABLE * max(run.seconds, measured.computing)


def _options(run: RunFacts, ran: RanFacts, now: _Now) -> Iterator[Option]:
    """Yield what might let a component stay, the best first: whole, and in part."""
    yield from placements(ran, Placement.RESIDENT)
    more = ran.facts.device_bytes - now.decided[ran.name].planned_bytes
    total = run.explicit.value(Budget, Setting.TOTAL_BUDGET)
    if total is not None and total.bytes is not None:
        yield option(Setting.TOTAL_BUDGET, "all", _rounded(total.bytes + more, up=True))
        if now.free > _PART * ran.facts.device_bytes:
            yield option(Setting.TOTAL_BUDGET, "all", _rounded(total.bytes + now.free, up=False))
    if run.explicit.is_explicit(Setting.BUDGET, ran.name):
        yield option(Setting.BUDGET, ran.name, _rounded(ran.facts.device_bytes, up=True))
    part = min(now.held[ran.name] + now.free, ran.facts.device_bytes)
    if part > now.held[ran.name] + _PART * ran.facts.device_bytes:
        yield option(Setting.BUDGET, ran.name, _rounded(part, up=False))


def _rounded(count: int, *, up: bool) -> str:
    """Spell an amount that a person can read: tenths of gigabytes, or whole megabytes."""
    unit = GB // 10 if count >= GB else MB
    steps = -(-count // unit) if up else count // unit
    return f"{steps / 10:g}GB" if unit != MB else f"{steps}MB"


def _applied(run: RunFacts, options: tuple[Option, ...], now: _Now) -> _Now | None:
    """Return what would be in force with some values set, or None where that is refused or does not fit."""
    decided = run.decide(tuple(one.argument for one in options))
    if decided is None:
        return None
    held = dict(now.held)
    for ran in run.ran:
        if not _is_same(decided[ran.name], now.decided[ran.name]):
            held[ran.name] = _takes(ran, decided[ran.name])
    free = now.free - sum(held.values()) + sum(now.held.values())
    return _Now(decided, held, free) if free >= 0 else None


def _is_same(one: Decision, other: Decision) -> bool:
    return (one.placement, one.planned_bytes) == (other.placement, other.planned_bytes)


def _takes(ran: RanFacts, decision: Decision) -> int:
    """Return the device memory that a component takes by a decision."""
    return ran.whole if _is_whole(ran, decision) else decision.held_bytes


def _is_whole(ran: RanFacts, decision: Decision) -> bool:
    return decision.placement is Placement.RESIDENT and decision.planned_bytes >= ran.facts.device_bytes


def _helps(ran: RanFacts, now: _Now, then: _Now) -> bool:
    """Tell whether a component gets what it was to get, and no other one loses anything."""
    decision, before = then.decided[ran.name], now.decided[ran.name]
    if decision.limits or decision.planned_bytes <= before.planned_bytes:
        return False
    if not (_is_whole(ran, decision) or decision.placement is Placement.LAYERWISE):
        return False
    return all(then.decided[name].planned_bytes >= had.planned_bytes for name, had in now.decided.items())


def _saved(run: RunFacts, then: _Now) -> float:
    """Return the seconds that are no longer spent waiting."""
    return sum(_saved_of(ran, then.decided[ran.name]) for ran in run.ran)


def _saved_of(ran: RanFacts, after: Decision) -> float:
    """Return how much of its waiting a component saves.

    Whole, it waits for nothing. In part, what is still copied takes its share of the time, unless that is less than
    computing takes anyway.
    """
    measured, before = ran.measured, ran.decision
    if measured is None or not measured.in_this_run or _is_same(before, after):
        return 0.0
    if _is_whole(ran, after):
        return measured.waiting
    runs = max(1, measured.calls) * (ran.facts.passes or 1)
    share = (after.planned_bytes - before.planned_bytes) * runs / max(1, measured.moved_bytes)
    return max(0.0, min(measured.waiting, min(1.0, share) * measured.computing))


def _why(run: RunFacts, ran: RanFacts, now: _Now, one: Option) -> str:
    """Say what was measured, and what a suggestion would overrule."""
    assert ran.measured is not None
    waited, free = format_seconds(ran.measured.waiting), format_bytes(max(0, now.free))
    clauses = [f"it waited {waited} for weights, and {free} of the device were to spare at the peak"]
    return "; ".join([*clauses, *you_set(run, ran, *_overruled(run, ran, one.argument.setting))])


def _overruled(run: RunFacts, ran: RanFacts, setting: Setting) -> tuple[Setting, ...]:
    """Return the settings that a suggestion takes the place of."""
    if setting is Setting.BUDGET:
        return Setting.PLACEMENT, Setting.BUDGET
    if setting is Setting.TOTAL_BUDGET or run.explicit.is_explicit(setting, ran.name):
        return (setting,)
    return (Setting.MODE,) if run.explicit.value(Mode, Setting.MODE) is Mode.MEMORY else ()
