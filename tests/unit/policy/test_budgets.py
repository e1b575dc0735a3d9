"""A budget holds whatever the placement: what does not fit in it is streamed, or the decision says why not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from facts import FLUX, GB, NODE, OVERRIDE, T5, VAE, asks, component, gb, machine, one

from offload_runtime.errors import StrictPolicyError
from offload_runtime.policy import PAGED, STREAMED, ComponentFacts, Placement, Policy, not_movable, resolve


def strict(placement: str = "auto", **settings: str) -> Policy:
    """What `asks` asks for, or nothing runs."""
    return Policy.from_widgets(NODE, placements={}, strict="on").extended(asks(placement, **settings))


@pytest.mark.parametrize("placement", ["auto", "resident", "offload", "layerwise"])
@pytest.mark.parametrize("of", [T5, FLUX, VAE], ids=["encoder", "diffusion model", "VAE"])
def test_what_a_budget_does_not_let_be_whole_is_streamed(placement: str, of: ComponentFacts) -> None:
    budget = of.bytes // 2
    decision = one(strict(placement, vram_budget=f"{budget}B"), machine(24), of)
    assert decision.placement is Placement.LAYERWISE
    assert decision.budget_bytes == decision.planned_bytes == budget
    assert placement == "layerwise" or "what does not fit there is streamed" in decision.reason


def test_the_workflows_budget_covers_everything_placed() -> None:
    policy = Policy.from_widgets(NODE, placements={}, vram_budget="6GB")
    plan = resolve(policy, machine(24), (FLUX, T5, VAE))
    assert sum(decision.planned_bytes for decision in plan) <= 6 * GB
    assert plan[FLUX.name].placement is Placement.LAYERWISE
    assert plan[FLUX.name].budget_bytes == plan[FLUX.name].planned_bytes


def test_what_is_offloaded_shares_the_workflows_budget() -> None:
    policy = Policy.from_widgets(
        NODE, placements={"text_encoder": "offload", "dit": "offload"}, vram_budget="15GB"
    )
    plan = resolve(policy, machine(24), (FLUX, T5))
    assert sum(decision.planned_bytes for decision in plan) <= 15 * GB


@pytest.mark.parametrize(
    ("of", "flags", "says"),
    [
        (component("text_encoder", 4, 0), (), "no repeated layers were found in it"),
        (
            component("vae", 4, 8, can=not_movable(STREAMED, "AudioOobleckVAE")),
            (),
            "AudioOobleckVAE to be offloaded",
        ),
        (T5, ("--gpu-only",), "--gpu-only keeps every weight on the device"),
    ],
)
def test_where_nothing_can_be_streamed_the_budget_is_said_not_to_hold(
    of: ComponentFacts, flags: tuple[str, ...], says: str
) -> None:
    decision = one(asks(vram_budget="1GB"), machine(24, *flags), of)
    assert any(says in limit for limit in decision.limits)
    with pytest.raises(StrictPolicyError, match=r"may exceed the 1.00 GB of its budget"):
        one(strict(vram_budget="1GB"), machine(24, *flags), of)


def test_a_budget_below_one_operation_is_said_to_be_exceeded() -> None:
    of = replace(T5, least_bytes=gb(0.1))
    assert not one(asks("layerwise", vram_budget="150MB"), machine(24), of).limits
    with pytest.raises(StrictPolicyError, match=r"takes 102 MB of VRAM, which is more than its budget"):
        one(strict("layerwise", vram_budget="50MB"), machine(24), of)


def test_what_comfyui_pages_in_is_held_to_its_budget_as_it_is() -> None:
    paged = replace(T5, can=PAGED)
    decision = one(asks("resident", vram_budget="4GB"), machine(24), paged)
    assert (decision.placement, decision.budget_asked) == (Placement.RESIDENT, 4 * GB)


def test_a_components_own_budget_ends_at_the_workflows() -> None:
    policy = Policy.from_widgets(NODE, placements={}, vram_budget="2GB")
    policy = policy.extended(Policy.for_component(OVERRIDE, "text_encoder", vram_budget="8GB"))
    decision = resolve(policy, machine(24), (replace(T5, can=PAGED),))["text_encoder"]
    assert decision.budget_asked == 2 * GB


def test_with_novram_a_budget_below_the_window_still_holds() -> None:
    decision = one(asks("layerwise", vram_budget="64MB"), machine(24, "--novram"), T5)
    assert decision.planned_bytes <= 64 << 20
