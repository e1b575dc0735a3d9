"""A plan that makes room after a failure: what nobody set gives way, what somebody set stays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from facts import CLIP_L, FLUX, GB, T5, VAE, machine, source
from hypothesis import given
from strategies import machines, policies, workflows

from offload_runtime.errors import StrictPolicyError
from offload_runtime.policy import Policy, resolve
from offload_runtime.policy.lessons import lessons
from offload_runtime.policy.making_room import is_set, resolve_with_room

ALL = (T5, CLIP_L, FLUX, VAE)
CARD = machine(24)
SHORT = replace(CARD, margin=4 * GB, ran_out="vae")


def policy(**widgets: Any) -> Policy:
    return Policy.from_widgets(source(), **widgets)


def placements(plan: Any) -> dict[str, str]:
    return {decision.component: str(decision.placement) for decision in plan}


def test_an_encoder_gives_way_and_the_reason_says_why() -> None:
    assert placements(resolve_with_room(policy(), CARD, ALL))["text_encoder"] == "resident"
    plan = resolve_with_room(policy(), SHORT, ALL)
    assert placements(plan)["text_encoder"] == "layerwise"
    assert "less 4.00 GB more after it ran out of memory in vae" in plan["text_encoder"].reason
    assert plan.room_bytes == resolve(policy(), CARD, ALL).room_bytes - 4 * GB


@pytest.mark.parametrize(
    "wish",
    [
        {"placements": {"text_encoder": "resident"}},
        {"vram_budget": "23GB"},
        {"mode": "manual"},
        {"placements": dict.fromkeys(("text_encoder", "dit", "vae"), "resident")},
        {"placements": {"text_encoder": "resident"}, "strict": "on"},
    ],
    ids=str,
)
def test_what_somebody_set_is_as_it_was(wish: dict[str, Any]) -> None:
    before, after = resolve(policy(**wish), CARD, ALL), resolve_with_room(policy(**wish), SHORT, ALL)
    for one, other in zip(before, after, strict=True):
        if is_set(one) or wish.get("mode") == "manual":
            assert (one.placement, one.planned_bytes, one.limits) == (
                other.placement,
                other.planned_bytes,
                other.limits,
            )


@given(policies(), machines(), workflows())
def test_no_margin_touches_what_somebody_set(policy: Policy, machine: Any, components: Any) -> None:
    short = replace(machine, margin=machine.vram_total // 4, ran_out="vae")
    try:
        before = resolve(policy, machine, components)
    except StrictPolicyError:
        with pytest.raises(StrictPolicyError):
            resolve_with_room(policy, short, components)
        return
    after = resolve_with_room(policy, short, components)
    for one, other in zip(before, after, strict=True):
        if is_set(one):
            given = one.placement, one.planned_bytes, one.budget_bytes, one.limits
            assert given == (other.placement, other.planned_bytes, other.budget_bytes, other.limits)


def test_the_new_decision_says_what_has_changed() -> None:
    assert lessons((CARD, ALL), (SHORT, ALL)) == "it ran out of memory in vae"
    assert lessons((SHORT, ALL), (CARD, ALL)) == "there was room enough in the last runs"
