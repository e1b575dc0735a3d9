"""Where the masters of streamed layers wait, and who gets the pinned memory."""

from __future__ import annotations

import pytest
from facts import FLUX, T5, component, cpu_machine, gb, machine

from offload_runtime.errors import StrictPolicyError
from offload_runtime.policy import (
    PAGED,
    ComponentFacts,
    Decision,
    HostTier,
    MachineFacts,
    Policy,
    Source,
    SourceKind,
    resolve,
)

NODE = Source(SourceKind.NODE, "Placement Policy, node 1")
OVERRIDE = Source(SourceKind.OVERRIDE, "Set Placement, node 2")
STRICT = Policy.from_widgets(NODE, strict="on")
TE_ON_CPU = component("text_encoder", 9.5, on_cpu=True)
IN_A_FILE = component("text_encoder", 9.5, bytes_to_add=gb(9))
PINNED_ALREADY = component("text_encoder", 9.5, pinned_bytes=gb(9.5) * 19 // 20)
NO_FILE = component("text_encoder", 9.5, file_bytes=0)
HAS_FILE = component("text_encoder", 9.5, file_bytes=gb(9))
PAGES = component("text_encoder", 9.5, can=PAGED)


def asks(placement: str, **settings: str) -> Policy:
    return Policy.for_component(NODE, "all", placement=placement, **settings)


def one(policy: Policy, facts: MachineFacts, of: ComponentFacts) -> Decision:
    return resolve(policy, facts, (of,))[of.name]


@pytest.mark.parametrize(
    ("wish", "facts", "of", "tier", "says"),
    [
        ("auto", machine(12), T5, HostTier.PINNED, None),
        ("staged", machine(12), T5, HostTier.STAGED, None),
        ("mapped", machine(12), T5, HostTier.MAPPED, None),
        ("auto", machine(12, pin_limit=gb(8)), T5, HostTier.STAGED, None),
        (
            "pinned",
            machine(12, pin_limit=gb(8)),
            T5,
            HostTier.STAGED,
            "are more than the 8.00 GB that may be pinned",
        ),
        ("auto", machine(12, "--disable-pinned-memory"), T5, HostTier.STAGED, None),
        (
            "pinned",
            machine(12, "--disable-pinned-memory"),
            T5,
            HostTier.STAGED,
            "--disable-pinned-memory allows no",
        ),
        # the weights are in memory already, and are replaced in place: one layer at a time is what it takes
        ("auto", machine(12, ram=32, ram_available=gb(10)), T5, HostTier.PINNED, None),
        ("auto", machine(12, ram_available=gb(6)), T5, HostTier.PINNED, None),
        ("auto", machine(12, ram_available=gb(2.2)), T5, HostTier.MAPPED, None),
        ("auto", machine(12, "--disable-mmap", ram_available=gb(2.2)), T5, HostTier.STAGED, None),
        ("mapped", machine(12, "--disable-mmap"), T5, HostTier.PINNED, "--disable-mmap lets nothing be read"),
        # those that are in a file only would come beside it
        ("auto", machine(12, ram_available=gb(6)), IN_A_FILE, HostTier.MAPPED, None),
        ("auto", machine(12, ram_available=gb(12)), IN_A_FILE, HostTier.PINNED, None),
        ("pinned", machine(12, ram_available=gb(6)), IN_A_FILE, HostTier.STAGED, "4.00 GB are left beside"),
        ("auto", machine(12, pin_limit=gb(1)), PINNED_ALREADY, HostTier.PINNED, None),
        ("auto", machine(12, pin_limit=0, ram_available=0), PINNED_ALREADY, HostTier.PINNED, None),
        ("auto", cpu_machine(), TE_ON_CPU, HostTier.MAPPED, None),
        ("pinned", cpu_machine(), TE_ON_CPU, HostTier.MAPPED, "pinned has no meaning on the CPU"),
        ("mapped", cpu_machine(), TE_ON_CPU, HostTier.MAPPED, None),
        ("mapped", machine(12), HAS_FILE, HostTier.MAPPED, None),
        # where no file holds them, it is as if nobody had asked, but for the wish that is not met
        ("mapped", machine(12), NO_FILE, HostTier.PINNED, "mapped was asked for, and no file holds"),
        ("mapped", machine(12, pin_limit=0), NO_FILE, HostTier.STAGED, "mapped was asked for, and no file"),
        ("mapped", machine(12, ram_available=gb(2.2)), NO_FILE, HostTier.STAGED, "no file holds"),
        ("auto", machine(12, ram_available=gb(2.2)), NO_FILE, HostTier.STAGED, None),
        ("auto", machine(12, ram_available=gb(2.2)), HAS_FILE, HostTier.MAPPED, None),
    ],
)
def test_host_tiers(
    wish: str, facts: MachineFacts, of: ComponentFacts, tier: HostTier, says: str | None
) -> None:
    decision = one(asks("layerwise", host=wish), facts, of)
    assert decision.host_tier is tier
    assert (says in decision.why) if says else decision.limits == ()
    assert decision.host_reason, "the choice always has a reason"


@pytest.mark.parametrize(("facts", "on_cpu"), [(machine(12), False), (cpu_machine(), True)])
def test_what_was_stored_is_said_and_is_no_limit(facts: MachineFacts, on_cpu: bool) -> None:
    of = component(
        "text_encoder", 9.5, on_cpu=on_cpu, file_bytes=gb(9), stored_bytes=gb(4), stored_in="temp/ours"
    )
    decision = one(asks("layerwise", host="mapped").extended(STRICT), facts, of)
    assert decision.host_tier is HostTier.MAPPED
    assert decision.host_reason.endswith("; 4.00 GB of it that no model file holds were written to temp/ours")
    assert decision.limits == ()


@pytest.mark.parametrize(("facts", "on_cpu"), [(machine(12), False), (cpu_machine(), True)])
def test_what_could_not_be_stored_beside_a_file_is_a_limit(facts: MachineFacts, on_cpu: bool) -> None:
    of = component("text_encoder", 9.5, on_cpu=on_cpu, file_bytes=gb(4), why_not_stored="its disk is full")
    decision = one(asks("layerwise", host="mapped"), facts, of)
    assert decision.host_tier is HostTier.MAPPED
    assert decision.limits[-1].endswith("some of its layers are in no model file, and its disk is full")
    with pytest.raises(StrictPolicyError, match="its disk is full"):
        one(asks("layerwise", host="mapped").extended(STRICT), facts, of)


def test_pinned_memory_goes_to_those_that_copy_most() -> None:
    once, often = component("text_encoder", 6), component("diffusion_model", 5, 40)
    plan = resolve(asks("layerwise"), machine(12, pin_limit=gb(8)), (once, often))
    assert [plan[c.name].host_tier for c in (once, often)] == [HostTier.STAGED, HostTier.PINNED]
    asked = asks("layerwise").extended(Policy.for_component(OVERRIDE, "text_encoder", host="pinned"))
    plan = resolve(asked, machine(12, pin_limit=gb(8)), (once, often))
    assert [plan[c.name].host_tier for c in (once, often)] == [HostTier.PINNED, HostTier.STAGED]


def test_memory_that_pinning_adds_is_shared_out_once() -> None:
    first, second = (component(name, 6, bytes_to_add=gb(5)) for name in ("text_encoder", "text_encoder_2"))
    plan = resolve(asks("layerwise"), machine(12, ram_available=gb(9)), (first, second))
    assert [plan[c.name].host_tier for c in (first, second)] == [HostTier.PINNED, HostTier.MAPPED]
    assert "2.00 GB are left beside 2.00 GB for the system" in plan["text_encoder_2"].host_reason


def test_a_wish_for_a_file_that_is_not_there_takes_no_pinned_memory_from_those_who_asked_for_it() -> None:
    pinned, mapped = component("text_encoder", 6), component("diffusion_model", 7, 40, file_bytes=0)
    policy = asks("layerwise", host="pinned").extended(
        Policy.for_component(OVERRIDE, "diffusion_model", host="mapped")
    )
    plan = resolve(policy, machine(12, pin_limit=gb(8)), (pinned, mapped))
    assert [plan[c.name].host_tier for c in (pinned, mapped)] == [HostTier.PINNED, HostTier.STAGED]


def test_a_strict_policy_is_refused_before_anything_runs_when_no_file_holds_the_weights() -> None:
    strict = asks("layerwise", host="mapped").extended(Policy.from_widgets(NODE, strict="on"))
    with pytest.raises(StrictPolicyError, match="mapped was asked for, and no file holds"):
        one(strict, machine(12), NO_FILE)
    assert one(strict, machine(12), HAS_FILE).limits == ()


@pytest.mark.parametrize(
    ("placement", "facts", "of", "says"),
    [
        *[(p, machine(12), T5, "it is not streamed") for p in ("resident", "offload", "cpu")],
        ("auto", machine(24), FLUX, "it is not streamed"),
        ("layerwise", machine(24), component("text_encoder", 1, 0), "it is not streamed"),
        ("resident", cpu_machine(), TE_ON_CPU, "it is not streamed"),
        *[(p, machine(12), PAGES, "dynamic VRAM keeps the weights") for p in ("resident", "layerwise")],
    ],
)
def test_a_host_tier_for_what_does_not_stream_is_in_vain_and_said(
    placement: str, facts: MachineFacts, of: ComponentFacts, says: str
) -> None:
    policy = Policy.for_component(NODE, of.name, placement=placement, host="pinned")
    decision = one(policy, facts, of)
    (limit,) = [limit for limit in decision.limits if limit.startswith("host")]
    assert limit.startswith("host pinned from Placement Policy, node 1 has no effect: ")
    assert says in limit
    assert decision.host_tier is None
    with pytest.raises(StrictPolicyError, match="host pinned from Placement Policy, node 1"):
        one(policy.extended(Policy.from_widgets(NODE, strict="on")), facts, of)
    assert not [limit for limit in one(asks(placement), facts, of).limits if limit.startswith("host")]


IN_DETAIL = component(
    "text_encoder",
    10,
    layer_bytes=gb(8),
    slot_bytes=gb(1),
    table_bytes=gb(1),
    loose_bytes=gb(0.25),
    file_bytes=gb(7),
    file_beside_bytes=gb(1.25),
)


@pytest.mark.parametrize(
    ("wish", "host", "facts", "says"),
    [
        # 1 GB of table and 0.25 GB that come with the load are never copied; ComfyUI pins the other 0.75 GB
        ("layerwise", "pinned", machine(24), "8.75 GB pinned · 1.00 GB pageable"),
        ("layerwise", "staged", machine(24), "768 MB pinned · 9.00 GB pageable"),
        ("layerwise", "staged", machine(24, "--disable-pinned-memory"), "9.75 GB pageable"),
        ("layerwise", "mapped", machine(24), "8.25 GB mapped · 512 MB pinned · 1.00 GB pageable"),
        ("layerwise", "auto", cpu_machine(), "8.25 GB mapped · 1.75 GB pageable"),
        ("resident", "auto", machine(24), "none"),
        ("resident", "auto", machine(6), "5.20 GB pinned"),
        ("resident", "auto", machine(6, pin_limit=0), "5.20 GB pageable"),
        ("offload", "auto", machine(24), "10.00 GB pageable"),
        ("cpu", "auto", machine(24), "10.00 GB pageable"),
        ("resident", "auto", cpu_machine(), "10.00 GB pageable"),
    ],
)
def test_host_bytes_are_planned(wish: str, host: str, facts: MachineFacts, says: str) -> None:
    decision = one(asks(wish, host=host), facts, IN_DETAIL)
    assert str(decision.host_bytes) == says


def test_what_dynamic_vram_keeps_on_the_host_is_not_planned() -> None:
    assert one(asks("resident"), machine(12), PAGES).host_bytes is None
