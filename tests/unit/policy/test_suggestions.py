"""Suggestions: what a run has measured, and the resolver agrees to; never more than three, never more than was free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import strategies as s
from facts import GB, component, gb, machine
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from offload_runtime.errors import StrictPolicyError
from offload_runtime.policy import (
    Argument,
    ComponentFacts,
    Decision,
    MachineFacts,
    Measured,
    Placement,
    Policy,
    RanFacts,
    RunFacts,
    Setting,
    Source,
    SourceKind,
    Suggestion,
    parse_value,
    resolve,
    suggest,
)
from offload_runtime.policy.files import parse_policy

NODE = Source(SourceKind.NODE, "Placement Policy, node 1")
FILE = Source(SourceKind.FILE, "a.offload.yaml")
NODES = {"Placement Policy": SourceKind.NODE, "Set Placement": SourceKind.OVERRIDE}

FIVE = (
    component("diffusion_model", 2, 10),
    component("text_encoder_2", 1),
    component("text_encoder", 1),
    component("image_encoder", 1),
    component("vae", 1),
)
STREAMED = Policy.from_widgets(
    NODE, placements=dict.fromkeys(("text_encoder", "image_encoder", "vae"), "layerwise")
)


def measured(waiting: float, of: ComponentFacts, **values: Any) -> Measured:
    given = Measured(True, 1, waiting + 0.05, waiting, (0.0, waiting + 0.05), of.layer_bytes, of.layers, 0)
    return replace(given, **values)


def run(
    policy: Policy,
    free: float,
    components: Sequence[ComponentFacts] = FIVE,
    waiting: float | Mapping[str, float] = 0.5,
    card: MachineFacts | None = None,
    **ran: Any,
) -> RunFacts:
    """A run of 2 seconds in which components were waited for, by name or all for the same time."""
    card = card or machine(24)

    def decide(arguments: tuple[Argument, ...]) -> dict[str, Decision] | None:
        try:
            plan = resolve(policy.extended(Policy(arguments)), card, components)
        except StrictPolicyError:
            return None
        return {decision.component: decision for decision in plan}

    decided = decide(())
    if decided is None:
        reject()
    assert decided is not None
    of = waiting if isinstance(waiting, Mapping) else {c.name: waiting for c in components}
    return RunFacts(
        [
            RanFacts(
                c,
                decided[c.name],
                measured(of.get(c.name, 0), c),
                decided[c.name].held_bytes,
                c.device_bytes,
                **{name: c.name in names for name, names in ran.items()},
            )
            for c in components
        ],
        gb(free),
        2.0,
        policy.explicit,
        decide,
    )


def lines(run: RunFacts) -> list[str]:
    return [suggestion.line for suggestion in suggest(run)]


def test_they_come_in_the_order_in_which_lifting_helps_most_and_no_more_than_three() -> None:
    assert lines(run(STREAMED, free=6)) == [
        "vae: resident",
        "image_encoder: resident",
        "text_encoder: resident",  # for both, which have one widget
    ]


def test_each_counts_those_before_it_as_applied() -> None:
    more = sum(c.bytes - c.window for c in FIVE[3:]) / GB  # of vae and image_encoder
    assert lines(run(STREAMED, free=more))[:2] == ["vae: resident", "image_encoder: resident"]
    assert lines(run(STREAMED, free=more - 0.001))[:2] == [
        "vae: resident",
        "image_encoder: {vram_budget: 1022MB}",
    ]


def test_what_a_group_has_no_room_for_one_of_it_may_have() -> None:
    both = {"text_encoder": 0.5, "text_encoder_2": 0.5}
    assert lines(run(STREAMED, free=2, waiting=both)) == ["text_encoder: resident"]
    assert lines(run(STREAMED, free=1, waiting=both)) == ["text_encoder_2: resident"]


@pytest.mark.parametrize("waiting", [0.0, 0.019])
def test_what_did_not_hold_it_up_is_left_as_it_is(waiting: float) -> None:
    assert suggest(run(STREAMED, free=20, waiting=waiting)) == ()


def test_what_did_not_run_is_left_as_it_is() -> None:
    earlier = run(STREAMED, free=20)
    ran = [one._replace(measured=replace(one.measured, in_this_run=False)) for one in earlier.ran]
    assert suggest(replace(earlier, ran=ran)) == ()


def test_without_room_there_is_nothing_to_suggest() -> None:
    assert suggest(run(STREAMED, free=0)) == ()
    assert suggest(run(STREAMED, free=-2)) == ()


def test_the_effect_is_what_is_taken_more_and_waited_for_less() -> None:
    (first, *_) = suggest(run(STREAMED, free=6))
    vae = FIVE[-1]
    assert first.bytes == vae.bytes - vae.window
    assert first.seconds == 0.5
    assert first.effect == "+943 MB of VRAM, about −500 ms a prompt (an estimate)"


def test_what_the_peak_did_not_hold_is_taken_more() -> None:
    earlier = run(STREAMED, free=6)
    evicted = [one._replace(held=0) for one in earlier.ran]
    assert suggest(replace(earlier, ran=evicted))[0].bytes == FIVE[-1].bytes


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (STREAMED, "you set placement layerwise (Placement Policy, node 1)"),
        (Policy.from_widgets(NODE, mode="memory"), "you set mode memory (Placement Policy, node 1)"),
        (
            Policy.from_widgets(NODE, vram_budget="2.5GB"),
            "you set vram_budget 2560MB (Placement Policy, node 1)",
        ),
        (
            Policy.for_component(NODE, "text_encoder", vram_budget="200MB", placement="layerwise"),
            "you set placement layerwise (Placement Policy, node 1)",
        ),
    ],
)
def test_what_somebody_set_is_named(policy: Policy, said: str) -> None:
    (found, *_) = suggest(run(policy, free=8, components=(FIVE[0], FIVE[2]), waiting={"text_encoder": 1}))
    assert said in found.why


def test_a_budget_of_the_workflow_is_raised_by_what_is_lacking() -> None:
    policy = Policy.from_widgets(NODE, vram_budget="2.5GB")
    (found,) = suggest(run(policy, free=8, components=(FIVE[0], FIVE[2]), waiting={"text_encoder": 1}))
    assert (found.node, found.widget, found.line) == ("Placement Policy", "vram_budget", "vram_budget: 3.1GB")


def test_an_override_in_the_chain_takes_one_behind_it() -> None:
    override = Source(SourceKind.OVERRIDE, "Set Placement, node 2")
    policy = Policy.for_component(override, "vae", placement="layerwise")
    (found,) = suggest(run(policy, free=8, waiting={"vae": 1}))
    assert (found.node, found.widget, found.line) == ("Set Placement", "placement", "vae: resident")


def test_what_a_strict_policy_would_refuse_is_not_suggested() -> None:
    strict = Policy.from_widgets(NODE, strict="on", placements={"text_encoder": "layerwise"})
    small = (component("text_encoder", 9.5), component("diffusion_model", 12, 57))
    tight = run(strict, free=30, components=small, card=machine(16), waiting={"text_encoder": 1})
    assert all("resident" not in line for line in lines(tight))


def test_part_of_a_component_saves_its_share_of_the_time() -> None:
    t5 = component("text_encoder", 9.5)
    policy = Policy.from_widgets(NODE, placements={"text_encoder": "layerwise"})
    (found,) = suggest(run(policy, free=4.7, components=(t5,), waiting={"text_encoder": 1.0}))
    assert found.line == "text_encoder: {vram_budget: 5.4GB}"
    assert found.seconds == pytest.approx(1.05 * found.bytes / t5.layer_bytes, rel=1e-6)
    assert 0 < found.bytes <= gb(4.7)


# Making room.

WHOLE = Policy.from_widgets(NODE, placements={"text_encoder": "resident", "vae": "resident"})
BIG = (component("text_encoder", 8), component("diffusion_model", 14, 57), component("vae", 0.3))


def lacking_steps(lacking: RunFacts, steps: int) -> RunFacts:
    """The same with 12 GB of the diffusion model there, for some steps."""
    return replace(
        lacking,
        ran=[
            one._replace(held=gb(12), measured=measured(0, one.facts, calls=steps)) if one.partly else one
            for one in lacking.ran
        ],
    )


def test_the_encoder_makes_room_for_a_diffusion_model_that_was_there_in_part() -> None:
    lacking = run(WHOLE, free=0, components=BIG, waiting=0, partly=("diffusion_model",))
    assert (
        suggest(lacking_steps(lacking, 1)) == ()
    )  # the encoder would be copied for less than it takes itself
    (found,) = suggest(lacking_steps(lacking, 8))
    assert (found.kind, found.line) == ("room", "text_encoder: layerwise")
    assert found.bytes == BIG[0].window - BIG[0].bytes
    assert found.why.startswith("there was no room for 2.00 GB of diffusion_model")
    assert "you set placement resident (Placement Policy, node 1)" in found.why
    assert found.effect.startswith("−")


def test_after_memory_ran_out_what_lacked_it_gives_way_last() -> None:
    short = run(WHOLE, free=0, components=BIG, waiting=0.5, short=("vae",))
    found = suggest(short)
    assert [one.line for one in found] == ["text_encoder: layerwise", "vae: layerwise"]
    assert found[0].why.startswith("memory ran out while vae computed")


def test_what_holds_little_already_has_nothing_to_give() -> None:
    policy = Policy.from_widgets(
        NODE, placements={"text_encoder": "layerwise", "vae": "layerwise", "dit": "layerwise"}
    )
    assert suggest(run(policy, free=0, components=BIG, waiting=0.5, short=("vae",))) == ()


# What is true of all runs.


@st.composite
def runs(draw: st.DrawFn) -> tuple[RunFacts, Policy, MachineFacts, Sequence[ComponentFacts]]:
    policy, card, workflow = draw(s.policies(strict=True)), draw(s.machines()), draw(s.workflows())
    waits = {c.name: draw(st.sampled_from([0.0, 0.1, 3.0])) for c in workflow}
    lacking = {
        name: draw(st.sets(st.sampled_from([c.name for c in workflow]), max_size=1)) if workflow else set()
        for name in draw(st.sampled_from([(), (), ("short",), ("partly",)]))
    }
    made = run(policy, draw(st.integers(-10, 90)), workflow, waits, card, **lacking)
    return made, policy, card, workflow


def applied(policy: Policy, suggestions: Sequence[Suggestion]) -> Policy:
    """A policy as the browser makes it: each value by the node that has a widget for it."""
    arguments = [
        Argument(
            setting, one.selector, parse_value(setting, one.value, "x"), Source(NODES[one.node], one.node)
        )
        for one in suggestions
        for setting in (_setting(one),)
    ]
    return policy.extended(Policy(tuple(arguments)))


def _setting(one: Suggestion) -> Setting:
    if one.key == Setting.PLACEMENT.key:
        return Setting.PLACEMENT
    return Setting.TOTAL_BUDGET if one.selector == "all" else Setting.BUDGET


@settings(max_examples=400)
@given(runs())
def test_applied_they_take_the_bytes_that_were_said_and_no_more_than_was_free(
    made: tuple[RunFacts, Policy, MachineFacts, Sequence[ComponentFacts]],
) -> None:
    measured_run, policy, card, workflow = made
    found = suggest(measured_run)
    assert len(found) <= 3
    ran = {one.name: one for one in measured_run.ran}
    held = {one.name: one.held for one in measured_run.ran}
    for count, one in enumerate(found, 1):
        plan = resolve(applied(policy, found[:count]), card, workflow)  # not refused
        gains = {n for n in ran if (ran[n].short or ran[n].partly) and plan[n].held_bytes > held[n]}
        then = {d.component: d.held_bytes for d in plan}
        assert sum(then[n] - held[n] for n in ran if one.kind == "lift" or n not in gains) == one.bytes
        held = then
        if one.kind == "lift":
            assert one.bytes > 0
            assert plan[one.component].limits == ()
            assert (ran[one.component].measured or measured(0, FIVE[0])).waiting > 0
        else:
            assert one.bytes < 0
        (argument,) = parse_policy(one.yaml, FILE).arguments
        assert (argument.setting, argument.selector) == (_setting(one), one.selector)
        assert argument.value == parse_value(argument.setting, one.value, "x")
    if found and found[0].kind == "lift":
        assert sum(one.bytes for one in found) <= measured_run.free
        turns = [ran[one.component].turn for one in found]
        assert turns == sorted(turns)
        assert all(one.seconds is not None and one.seconds >= 0 for one in found)
        assert all(
            resolve(applied(policy, found), card, workflow)[name].placement is not Placement.CPU
            for name in (one.component for one in found)
        )
