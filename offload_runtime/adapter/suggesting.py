"""What a person could set, from what a run measured of the live models, and what would be decided of them then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..errors import StrictPolicyError
from ..policy import (
    Argument,
    CardPeak,
    ComponentFacts,
    Decision,
    MachineFacts,
    Placement,
    PlacementRow,
    Policy,
    RanFacts,
    RunFacts,
    Suggestion,
    group_of,
    suggest,
)
from .dynamic_pages import whole_bytes
from .record import record_of
from .runs import Run

if TYPE_CHECKING:
    from .placed import Placed, Placements


def suggestions_of(
    placements: Placements,
    rows: Sequence[PlacementRow],
    machine: MachineFacts,
    card: CardPeak | None,
    run: Run,
) -> tuple[Suggestion, ...]:
    """Return what a person could set; nothing where nobody counts the memory of the device.

    Args:
        placements: what was placed.
        rows: their rows of the report.
        machine: the facts of the machine now.
        card: the device when the most of it was in use in the run.
        run: the run.
    """
    if card is None:
        return ()

    def decide(arguments: tuple[Argument, ...]) -> dict[str, Decision] | None:
        decided: dict[str, Decision] = {}
        try:
            for standing in placements.standing:
                decided |= standing.decided_with(Policy(arguments), machine, decided)
        except StrictPolicyError:
            return None
        return decided if decided.keys() >= placements.names else None

    ran = [_ran(placed, row, card, run) for placed, row in zip(placements.placed, rows, strict=True)]
    ended = [one.measured.moments[1] for one in ran if _in_run(one) and one.measured and one.measured.moments]
    facts = RunFacts(
        ran=ran,
        free=card.total - card.used - machine.inference_reserve,
        seconds=max(ended, default=0.0),
        explicit=Policy().extended(*placements.policies).explicit,
        decide=decide,
    )
    return suggest(facts)


def _in_run(ran: RanFacts) -> bool:
    return ran.measured is not None and ran.measured.in_this_run


def _ran(placed: Placed, row: PlacementRow, card: CardPeak, run: Run) -> RanFacts:
    model, facts = placed.model, placed.facts
    if model is not None:
        facts = replace(facts, passes=record_of(model).passes)
    uses = record_of(model).uses if model is not None else None
    held = uses.held if uses is not None else None
    whole = whole_bytes(model, card.device) if model is not None and facts.can.keeper else None
    return RanFacts(
        facts=facts,
        decision=placed.decision,
        measured=row.measured,
        held=card.models.get(facts.name, 0),
        whole=facts.device_bytes if whole is None else whole,
        short=uses is not None and uses.run is run and uses.failed,
        partly=_had_room_for_a_part(facts, placed.decision, held),
    )


def _had_room_for_a_part(facts: ComponentFacts, decision: Decision, held: int | None) -> bool:
    """Tell whether ComfyUI streamed a diffusion model for want of room, and not because somebody wants it so."""
    left = decision.placement in (Placement.AUTO, Placement.RESIDENT) and decision.budget_asked is None
    return left and group_of(facts.name) == "dit" and held is not None and held < facts.device_bytes
