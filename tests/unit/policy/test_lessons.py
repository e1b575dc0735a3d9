"""What runs have taught: noise changes nothing, and what is new is said."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from facts import FLUX, GB, T5, VAE, component, gb, machine

from offload_runtime.policy import Beside, Decision, MachineFacts, Plan, Policy, resolve
from offload_runtime.policy.lessons import is_same, lessons, steadied

WORKFLOW = (T5, FLUX, VAE)


def test_fifty_prompts_with_noise_in_the_free_memory_decide_the_same() -> None:
    """Right at the point where everything just fits, and ten per cent of the free memory come and go."""
    dice, card = Random(7), 23.3
    made_from = machine(card)
    first = resolve(Policy(), made_from, WORKFLOW)
    assert str(first["text_encoder"].placement) == "resident"
    plans = []
    for _ in range(50):
        others = dice.uniform(0, 0.1) * card
        now = replace(made_from, vram_others=gb(others), vram_free=gb(card - others))
        plans.append(resolve(Policy(), steadied(made_from, now), WORKFLOW))
    assert any(resolve(Policy(), replace(made_from, vram_others=gb(1)), WORKFLOW) != plan for plan in plans)
    assert all(plan == first for plan in plans)


@pytest.mark.parametrize(
    ("held", "holds", "new"), [(0, 4, False), (0, 5, True), (12, 10, False), (12, 0, True)]
)
def test_what_is_clearly_another_amount_of_free_memory_counts(held: float, holds: float, new: bool) -> None:
    before = machine(24, vram_others=gb(held))
    now = machine(24, vram_others=gb(holds), vram_free=gb(3))
    assert steadied(before, now).vram_others == gb(holds if new else held)
    assert steadied(before, now).ram_available == before.ram_available


def test_a_card_without_memory_is_a_card_too() -> None:
    assert steadied(machine(0), machine(0)) == machine(0)


@pytest.mark.parametrize(
    ("machine_now", "component_now", "says"),
    [
        (machine(24), T5, ""),
        (
            machine(24, vram_others=gb(8)),
            T5,
            "other programs hold 8.00 GB of the card now, not 0 B",
        ),
        (machine(24), replace(T5, passes=40), "text_encoder ran each layer 40 × in its last use"),
        (machine(24), replace(T5, passes=1), "text_encoder ran each layer 1 × in its last use"),
        (
            machine(24, vram_others=GB),
            replace(T5, activation_bytes=gb(4)),
            "other programs hold 1.00 GB of the card now, not 0 B and ComfyUI asked for 4.00 GB beside "
            "text_encoder in its last uses",
        ),
    ],
)
def test_what_was_learnt_is_said(machine_now: MachineFacts, component_now: object, says: str) -> None:
    assert lessons((machine(24), [T5]), (machine_now, [component_now])) == says  # type: ignore[list-item]


def test_what_a_sampler_asks_for_makes_an_encoder_give_way() -> None:
    guessed = resolve(Policy(), machine(24), WORKFLOW)
    learnt = resolve(Policy(), machine(24), (T5, replace(FLUX, activation_bytes=gb(6)), VAE))
    assert str(guessed["text_encoder"].placement) == "resident"
    assert str(learnt["text_encoder"].placement) == "layerwise"
    assert "6.00 GB for activations, as ComfyUI asked for in the last uses" in learnt["text_encoder"].reason


def test_one_measured_use_ends_the_guess_for_video() -> None:
    video = component("video_vae", 0.3, 8)
    guessed = resolve(Policy(), machine(24), (T5, FLUX, video))
    learnt = resolve(Policy(), machine(24), (T5, FLUX, replace(video, activation_bytes=gb(1.5))))
    assert str(guessed["text_encoder"].placement) == "layerwise"
    assert str(learnt["text_encoder"].placement) == "resident"


def one(plan: Plan) -> Decision:
    return plan["text_encoder"]


def test_two_decisions_are_the_same_whatever_their_reasons() -> None:
    fits = one(resolve(Policy(), machine(24), WORKFLOW))
    streams = one(resolve(Policy(), machine(16), WORKFLOW))
    assert is_same(fits, replace(fits, reason="another"))
    assert not is_same(fits, streams)
    assert not is_same(streams, one(resolve(Policy(), machine(17), WORKFLOW, Beside())))
