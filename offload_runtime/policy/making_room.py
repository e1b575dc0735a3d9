"""A plan that leaves room after the workflow ran out of memory, as far as nothing that was set changes for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..errors import StrictPolicyError
from .beside import ALONE, Beside
from .components import Mode
from .decision import Decision, Plan
from .facts import ComponentFacts, MachineFacts
from .policy import Policy
from .resolver import resolve

_PARTS = (1.0, 0.5, 0.25)
"""How much of the room is tried to be left."""


def resolve_with_room(
    policy: Policy, machine: MachineFacts, components: Sequence[ComponentFacts], beside: Beside = ALONE
) -> Plan:
    """Decide as `resolve` does, and leave the margin of the machine free.

    Only what nobody set gives way. Where what somebody set would get less, less room is made, or none.

    Raises:
        StrictPolicyError: as `resolve` does where no room is made.
    """
    plain = resolve(policy, replace(machine, margin=0, ran_out=""), components, beside)
    makes_room = machine.margin and plain.mode is not Mode.MANUAL
    for part in _PARTS if makes_room else ():
        margin = int(machine.margin * part)
        try:
            plan = resolve(policy, replace(machine, margin=margin), components, beside)
        except StrictPolicyError:
            continue
        if all(map(_is_left_alone, plain, plan)):
            return plan
    return plain


def is_set(decision: Decision) -> bool:
    """Tell whether somebody said where a component is to be, or how much it may take."""
    return decision.asked is not None or decision.budget_asked is not None


def _is_left_alone(before: Decision, now: Decision) -> bool:
    """Tell whether a decision is nobody's, or gives what it did."""
    if not is_set(before):
        return True
    given = before.placement, before.planned_bytes, before.budget_bytes, before.limits
    return given == (now.placement, now.planned_bytes, now.budget_bytes, now.limits)
