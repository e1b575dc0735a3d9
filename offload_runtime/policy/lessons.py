"""What the last runs have taught about a workflow that is placed already, and when that is worth a new decision.

What was learnt counts from the next load on, for whatever nobody set. The free memory of a card is never twice the
same, so a decision stands on that which it was made for until there is clearly more or less: noise changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from .decision import Decision
from .facts import ComponentFacts, MachineFacts
from .quantities import format_bytes

NOISE = 1.25
"""Free memory that differs by no more than this factor is taken for the same: ± 10 % both then and now."""


def steadied(before: MachineFacts, now: MachineFacts) -> MachineFacts:
    """Return the facts of a machine to decide by again.

    Args:
        before: those that the decision in force was made from.
        now: those of the moment.
    """
    had, has = _ours(before), _ours(now)
    if had <= has * NOISE and has <= had * NOISE:
        return before
    return replace(before, vram_others=now.vram_others, vram_free=now.vram_free)


def lessons(
    before: tuple[MachineFacts, Iterable[ComponentFacts]], now: tuple[MachineFacts, Iterable[ComponentFacts]]
) -> str:
    """Say what is known now and was not, as clauses for people; "" where that is only of models beside these.

    Args:
        before: the facts that the decision in force was made from.
        now: those that the new one is made from.
    """
    (machine, components), (machine_now, components_now) = before, now
    clauses = list(_of_machine(machine, machine_now))
    for had, has in zip(components, components_now, strict=True):
        clauses += _of_component(had, has)
    return " and ".join(clauses)


def is_same(one: Decision, other: Decision) -> bool:
    """Tell whether two decisions ask the same of the card, whatever their reasons are."""
    same = one.placement is other.placement and one.gives_way == other.gives_way
    return same and (one.budget_bytes, one.planned_bytes) == (other.budget_bytes, other.planned_bytes)


def _ours(machine: MachineFacts) -> int:
    return max(0, machine.vram_total - machine.vram_others)


def _of_machine(before: MachineFacts, now: MachineFacts) -> Iterator[str]:
    if before.vram_others != now.vram_others:
        held, holds = format_bytes(before.vram_others), format_bytes(now.vram_others)
        yield f"other programs hold {holds} of the card now, not {held}"
    if before.margin < now.margin:
        yield f"it ran out of memory in {now.ran_out}"
    elif before.margin > now.margin:
        yield "there was room enough in the last runs"


def _of_component(before: ComponentFacts, now: ComponentFacts) -> Iterator[str]:
    if before.passes != now.passes and now.passes is not None:
        yield f"{now.name} ran each layer {now.passes} × in its last use"
    if before.activation_bytes != now.activation_bytes:
        yield f"ComfyUI asked for {format_bytes(now.activation_bytes)} beside {now.name} in its last uses"
