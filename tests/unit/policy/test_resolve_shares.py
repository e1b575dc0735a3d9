"""How the device memory of a card, or of a budget, is shared out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from facts import CLIP_L, FLUX, GB, NODE, T5, VAE, asks, component, gb, machine, one

from offload_runtime.policy import (
    Beside,
    ComponentFacts,
    MachineFacts,
    Placement,
    Policy,
    resolve,
)


def test_only_as_many_encoders_give_way_as_must() -> None:
    plan = resolve(Policy(), machine(16), (T5, CLIP_L, FLUX, VAE))
    assert [str(plan[name].placement) for name in ("text_encoder", "text_encoder_2", "vae")] == [
        "layerwise",
        "resident",
        "resident",
    ]
    assert "text_encoder giving way makes room enough" in plan["text_encoder_2"].reason


def test_the_smallest_encoder_that_suffices_gives_way() -> None:
    encoders = (component("text_encoder", 8), component("text_encoder_2", 3))
    plan = resolve(Policy(), machine(24), (*encoders, FLUX))  # 23 GB into 22.8 GB
    assert [str(plan[c.name].placement) for c in encoders] == ["resident", "layerwise"]


def test_text_encoders_give_way_before_image_encoders() -> None:
    encoders = (component("image_encoder", 8), component("text_encoder", 8))
    plan = resolve(Policy(), machine(24), (*encoders, FLUX))
    assert [str(plan[c.name].placement) for c in encoders] == ["resident", "layerwise"]


def test_the_activations_of_video_are_kept_free_until_they_are_known() -> None:
    video = (
        component("text_encoder", 6),
        component("diffusion_model", 12, 40),
        component("video_vae", 0.5, 12),
    )
    known = (video[0], component("diffusion_model", 12, 40, activation_bytes=gb(2)), video[2])
    assert resolve(Policy(), machine(24), video)["text_encoder"].placement is Placement.LAYERWISE
    assert resolve(Policy(), machine(24), known)["text_encoder"].placement is Placement.RESIDENT


def test_memory_of_other_programs_is_not_counted_on() -> None:
    both = (T5, FLUX)
    assert resolve(Policy(), machine(24), both)["text_encoder"].placement is Placement.RESIDENT
    crowded = resolve(Policy(), machine(24, vram_others=gb(4)), both)
    assert crowded["text_encoder"].placement is Placement.LAYERWISE
    assert "4.00 GB that other programs hold" in crowded["text_encoder"].reason


def test_asking_for_layerwise_and_no_more_means_the_window_only() -> None:
    decision = one(asks("layerwise"), machine(24))
    assert decision.budget_bytes is None
    assert decision.planned_bytes == T5.window


@pytest.mark.parametrize(
    ("budget", "planned", "limited"),
    [("2GB", 2 * GB, False), ("25%", 6 * GB, False), ("9.5GB", T5.bytes, False), ("48GB", T5.bytes, True)],
)
def test_a_budget_of_its_own_keeps_layers_resident(budget: str, planned: int, limited: bool) -> None:
    decision = one(asks("layerwise", vram_budget=budget), machine(24))
    assert decision.planned_bytes == decision.budget_bytes == planned
    assert bool(decision.limits) == limited


def test_a_budget_below_two_layers_is_honoured() -> None:
    decision = one(asks("layerwise", vram_budget="100MB"), machine(24))
    assert decision.budget_bytes == 100 << 20


def test_one_budget_for_all_is_shared_out() -> None:
    policy = asks("layerwise", "text_encoder").extended(Policy.from_widgets(NODE, vram_budget="6GB"))
    plan = resolve(policy, machine(24), (T5, VAE))
    assert plan["vae"].planned_bytes == VAE.bytes
    assert plan["text_encoder"].budget_bytes == 6 * GB - VAE.bytes
    assert plan.room == "6.00 GB (the VRAM budget of 6.00 GB)"


def test_a_budget_beside_others_is_cut_and_told() -> None:
    policy = asks("resident", "dit").extended(asks("layerwise", "text_encoder", vram_budget="8GB"))
    plan = resolve(policy, machine(16), (T5, FLUX))
    assert plan["diffusion_model"].planned_bytes == FLUX.bytes
    assert plan["text_encoder"].planned_bytes == plan.room_bytes - FLUX.bytes
    assert "of that budget are left beside the other components" in plan["text_encoder"].why


def test_an_explicit_resident_comes_before_an_automatic_one() -> None:
    plan = resolve(asks("resident", "text_encoder"), machine(12), (T5, FLUX, VAE))
    assert plan["text_encoder"].planned_bytes == T5.bytes
    assert plan["vae"].planned_bytes == VAE.bytes


def test_what_an_earlier_loader_left_to_comfyui_needs_room_and_is_named() -> None:
    second = resolve(Policy(), machine(16), (T5,), placed(machine(16), FLUX))
    assert second["text_encoder"].placement is Placement.LAYERWISE
    assert "beside diffusion_model (12.00 GB, placed before)" in second["text_encoder"].reason


def test_the_memory_that_an_earlier_loader_has_given_away_is_spent() -> None:
    second = resolve(Policy(), machine(16), (component("text_encoder_2", 9.5),), placed(machine(16), T5))
    assert second["text_encoder_2"].placement is Placement.LAYERWISE
    assert "9.50 GB of an earlier loader" in second["text_encoder_2"].reason


def placed(facts: MachineFacts, *components: ComponentFacts, policy: Policy = Policy()) -> Beside:  # noqa: B008
    """Return what an earlier loader has placed."""
    return Beside(tuple(zip(components, resolve(policy, facts, components), strict=True)))


def test_what_somebody_allowed_is_told_apart_from_what_the_plan_counts() -> None:
    """Who takes memory in pages holds to it, and needs what is left of a total for rounding."""
    by_name = one(asks("layerwise", vram_budget="20GB"), machine(24))
    assert (by_name.budget_asked, by_name.budget_bytes) == (gb(20), gb(9.5))
    total = Policy.from_widgets(NODE, vram_budget="12GB")
    plan = resolve(total, machine(24), (T5, CLIP_L))
    assert sum(decision.budget_asked or 0 for decision in plan) <= gb(12)
    assert all((decision.budget_asked or 0) > decision.planned_bytes for decision in plan)
    assert one(asks("layerwise"), machine(24)).budget_asked is None
    assert one(Policy(), machine(24)).budget_asked is None


def test_what_has_run_more_often_gets_the_rest_of_a_budget() -> None:
    budget = {"vram_budget": "5GB"}
    policy = Policy.from_widgets(NODE, placements={}, **budget)
    encoder, model = (
        component("text_encoder", 9.5, 24, passes=1),
        component("diffusion_model", 9.5, 40, passes=20),
    )
    for often, other in ((encoder, model), (replace(encoder, passes=20), replace(model, passes=1))):
        plan = resolve(policy, machine(24), (often, other, VAE))
        shares = {name: plan[name].planned_bytes for name in ("text_encoder", "diffusion_model", "vae")}
        once = min((often, other), key=lambda c: c.passes or 0)
        assert shares[once.name] < once.window + once.layer_bytes // once.layers, (
            "its window, and no whole layer more"
        )
        assert gb(4.99) < sum(shares.values()) <= gb(5)
