"""What holds for every policy, machine and workflow."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import strategies as s
from hypothesis import given
from hypothesis import strategies as st

from offload_runtime.errors import StrictPolicyError
from offload_runtime.policy import (
    Beside,
    Budget,
    ComponentFacts,
    Decision,
    HostTier,
    MachineFacts,
    Mode,
    Placement,
    PlacementRow,
    Policy,
    Report,
    Setting,
    Source,
    SourceKind,
    resolve,
)
from offload_runtime.policy.beside import joint_bytes
from offload_runtime.policy.bounds import bound

ALL = (s.policies(), s.machines(), s.workflows())
LOW = (SourceKind.USER_DEFAULT, SourceKind.COMMAND_LINE)
HIGH = (SourceKind.FILE, SourceKind.NODE, SourceKind.OVERRIDE)


@given(*ALL)
def test_a_plan_never_takes_more_than_there_is(
    policy: Policy, machine: MachineFacts, workflow: tuple[ComponentFacts, ...]
) -> None:
    plan = resolve(policy, machine, workflow)
    kept = max((machine.inference_reserve, *(c.activation_bytes for c in workflow if not c.on_cpu)))
    room = max(0, machine.vram_total - machine.vram_others - kept)
    budget = policy.explicit.value(Budget, Setting.TOTAL_BUDGET)
    if budget is not None:
        room = min(room, budget.resolve(machine.vram_total))
    assert plan.room_bytes <= room
    held = zip(workflow, plan, strict=True)
    assert together(held, budgeted=budget is not None) <= plan.room_bytes
    for decision, component in zip(plan, workflow, strict=True):
        assert 0 <= decision.planned_bytes <= min(component.device_bytes, plan.room_bytes)
        own = policy.explicit.value(Budget, Setting.BUDGET, component.name)
        if own is not None:
            assert decision.planned_bytes <= own.resolve(machine.vram_total)
        if component.on_cpu or not machine.accelerator or decision.placement is Placement.CPU:
            assert (decision.planned_bytes, decision.budget_bytes) == (0, None)


@given(*ALL)
def test_a_budget_is_held_or_the_decision_says_why_not(
    policy: Policy, machine: MachineFacts, workflow: tuple[ComponentFacts, ...]
) -> None:
    total = policy.explicit.value(Budget, Setting.TOTAL_BUDGET)
    for decision, component in zip(resolve(policy, machine, workflow), workflow, strict=True):
        own = policy.explicit.value(Budget, Setting.BUDGET, component.name)
        if not machine.accelerator or component.on_cpu or decision.placement is Placement.CPU:
            continue
        allowed = [b.resolve(machine.vram_total) for b in (own, total) if b is not None]
        if not allowed:
            continue
        if component.can.budget_when_whole:
            assert decision.budget_asked is not None
            assert decision.budget_asked <= min(allowed)
        elif decision.placement is Placement.LAYERWISE:
            assert decision.budget_bytes is not None
            assert decision.budget_bytes <= min(allowed)
            assert decision.budget_bytes >= component.least_bytes or decision.limits
        else:
            assert component.device_bytes <= min(allowed) or decision.limits


@given(*ALL, s.workflows())
def test_loaders_in_a_row_share_the_room(
    policy: Policy,
    machine: MachineFacts,
    first: tuple[ComponentFacts, ...],
    second: tuple[ComponentFacts, ...],
) -> None:
    earlier = resolve(policy, machine, first)
    beside = Beside(tuple(zip(first, earlier, strict=True)))
    later = resolve(policy, machine, second, beside)
    budget = policy.explicit.value(Budget, Setting.TOTAL_BUDGET)
    if budget is not None:
        everything = (*earlier, *later)
        assert sum(decision.held_bytes for decision in everything) <= budget.resolve(machine.vram_total)
        return
    # What is left to ComfyUI gives way, and diffusion models that run in turn are not there together.
    held = [(c, d) for c, d in (*beside.earlier, *zip(second, later, strict=True)) if _holds(d)]
    assert together(held) <= machine.vram_total


def _holds(decision: Decision) -> bool:
    return decision.placement is not Placement.AUTO or decision.budget_asked is not None


def together(held: Iterable[tuple[ComponentFacts, Decision]], *, budgeted: bool = False) -> int:
    """Return the device memory that components hold at a time."""
    return joint_bytes((d.held_bytes, c.takes_turns and not budgeted) for c, d in held)


@given(*ALL)
def test_explicit_placements_are_done_or_bounded_with_a_reason(
    policy: Policy, machine: MachineFacts, workflow: tuple[ComponentFacts, ...]
) -> None:
    high = Policy(tuple(a for a in policy.arguments if a.source.kind in HIGH))
    for decision in resolve(high, machine, workflow):
        won = high.explicit.winner(Setting.PLACEMENT, decision.component)
        if won is None:
            continue
        assert (decision.asked, decision.source) == (won.value, won.source)
        if decision.placement is not won.value:
            assert decision.limits or "its budget is less than" in decision.reason


@given(*ALL)
def test_host_bytes_are_those_that_are_not_on_the_device(
    policy: Policy, machine: MachineFacts, workflow: tuple[ComponentFacts, ...]
) -> None:
    """And what stays on the device whole, or leaves it whole, is not pinned."""
    for decision, component in zip(resolve(policy, machine, workflow), workflow, strict=True):
        planned = decision.host_bytes
        computes_on_cpu = decision.placement is Placement.CPU or component.on_cpu or not machine.accelerator
        assert (planned is None) == (bool(component.can.keeper) and not computes_on_cpu)
        if planned is None:
            continue
        assert min(planned.mapped, planned.pinned, planned.pageable) >= 0
        assert planned.mapped + planned.pinned + planned.pageable <= component.bytes
        streams = decision.placement is Placement.LAYERWISE
        assert streams or not planned.mapped
        whole = decision.planned_bytes >= component.device_bytes or decision.placement is Placement.OFFLOAD
        if whole or computes_on_cpu or machine.flag("--disable-pinned-memory"):
            assert planned.pinned == 0
        if decision.placement in (Placement.OFFLOAD, Placement.CPU):
            assert planned.pageable == component.bytes


@given(*ALL)
def test_every_decision_has_a_reason_and_names_who_asked(
    policy: Policy, machine: MachineFacts, workflow: tuple[ComponentFacts, ...]
) -> None:
    for decision in resolve(policy, machine, workflow):
        assert decision.reason
        assert decision.reason in decision.why
        assert (decision.asked is None) == (decision.source is None)
        assert decision.asked is None or f"was set by {decision.source}" in decision.reason
        of = next(c for c in workflow if c.name == decision.component)
        streams = decision.placement is Placement.LAYERWISE and not of.can.keeper
        assert (decision.host_tier is not None) == streams
        assert decision.host_tier is not HostTier.AUTO
        if decision.placement is Placement.LAYERWISE:
            assert of.layers


@given(s.policies(s.sources(*HIGH)), s.policies(s.sources(*LOW)), s.machines(), s.workflows())
def test_a_source_of_lower_precedence_never_changes_an_explicit_decision(
    high: Policy, low: Policy, machine: MachineFacts, workflow: tuple[ComponentFacts, ...]
) -> None:
    before, after = resolve(high, machine, workflow), resolve(high.extended(low), machine, workflow)
    for one, other in zip(before, after, strict=True):
        if high.explicit.is_explicit(Setting.PLACEMENT, one.component):
            assert (one.placement, one.asked, one.source) == (other.placement, other.asked, other.source)
    if high.explicit.is_explicit(Setting.MODE):
        assert before.mode is after.mode


@given(*ALL)
def test_deciding_what_was_decided_changes_nothing(
    policy: Policy, machine: MachineFacts, workflow: tuple[ComponentFacts, ...]
) -> None:
    plan = resolve(policy, machine, workflow)
    assert resolve(policy, machine, workflow) == plan
    again = resolve(plan.as_policy(Source(SourceKind.OVERRIDE, "the plan")), machine, workflow)
    all_decided = all(decision.placement is not Placement.AUTO for decision in plan)
    for one, other in zip(plan, again, strict=True):
        if one.placement is not Placement.AUTO:
            assert (one.placement, one.host_tier) == (other.placement, other.host_tier)
        # What is asked for by name comes before what is left to ComfyUI, where there is not room for both.
        if all_decided or one.placement is Placement.LAYERWISE:
            assert one.planned_bytes == other.planned_bytes


@given(*ALL)
def test_the_order_of_components_changes_no_placement(
    policy: Policy, machine: MachineFacts, workflow: tuple[ComponentFacts, ...]
) -> None:
    forward, backward = resolve(policy, machine, workflow), resolve(policy, machine, workflow[::-1])
    assert [d.placement for d in forward] == [d.placement for d in backward][::-1]


@given(*ALL)
def test_a_strict_policy_is_refused_exactly_when_something_is_not_done(
    policy: Policy, machine: MachineFacts, workflow: tuple[ComponentFacts, ...]
) -> None:
    plan = resolve(policy, machine, workflow)
    strict = policy.extended(Policy.from_widgets(Source(SourceKind.OVERRIDE, "switch"), strict="on"))
    if plan.notes or any(decision.limits for decision in plan):
        with pytest.raises(StrictPolicyError, match="switch"):
            resolve(strict, machine, workflow)
    else:
        assert resolve(strict, machine, workflow) == plan


@given(s.machines(), s.workflows())
def test_where_everything_fits_nothing_is_streamed(
    machine: MachineFacts, workflow: tuple[ComponentFacts, ...]
) -> None:
    plan = resolve(Policy(), machine, workflow)
    taking = [c for c in workflow if not c.on_cpu]
    if machine.accelerator and sum(c.device_bytes for c in taking) <= plan.room_bytes and not machine.flags:
        streamed = {d.component for d in plan if d.placement is Placement.LAYERWISE}
        assert not streamed & {c.name for c in taking}


@given(s.machines(), s.workflows())
def test_nothing_automatic_happens_in_manual_mode(
    machine: MachineFacts, workflow: tuple[ComponentFacts, ...]
) -> None:
    manual = Policy.from_widgets(Source(SourceKind.NODE, "node"), mode="manual")
    for decision in resolve(manual, machine, workflow):
        assert decision.placement is Placement.AUTO or decision.asked is not None  # asked by the command line


@given(s.machines(), s.workflows(), st.sampled_from(Mode))
def test_a_diffusion_model_that_nobody_asked_for_is_left_to_comfyui(
    machine: MachineFacts, workflow: tuple[ComponentFacts, ...], mode: Mode
) -> None:
    policy = Policy.from_widgets(Source(SourceKind.NODE, "node"), mode=mode.value)
    for decision in resolve(policy, machine, workflow):
        if decision.component.startswith("diffusion_model") and decision.asked is None:
            assert decision.placement is Placement.AUTO


@given(st.sampled_from([p for p in Placement if p is not Placement.AUTO]), s.machines(), s.workflows())
def test_bounding_twice_changes_nothing(
    placement: Placement, machine: MachineFacts, workflow: tuple[ComponentFacts, ...]
) -> None:
    for component in workflow:
        once, _ = bound(placement, component, machine)
        assert bound(once, component, machine)[0] is once


@given(*ALL)
def test_the_report_of_any_plan_reads(
    policy: Policy, machine: MachineFacts, workflow: tuple[ComponentFacts, ...]
) -> None:
    plan = resolve(policy, machine, workflow)
    rows = tuple(PlacementRow.of(c, d) for c, d in zip(workflow, plan, strict=True))
    text = Report("the machine", rows, notes=plan.notes).text()
    assert all(component.name in text for component in workflow)
