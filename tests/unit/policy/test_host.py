"""Where the masters of streamed layers wait, and who gets the pinned memory."""

from __future__ import annotations

import pytest
from facts import T5, component, cpu_machine, gb, machine

from offload_runtime.policy import (
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
TE_ON_CPU = component("text_encoder", 9.5, on_cpu=True)
IN_A_FILE = component("text_encoder", 9.5, bytes_to_add=gb(9))
PINNED_ALREADY = component("text_encoder", 9.5, pinned_bytes=gb(9.5) * 19 // 20)


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
        ("mapped", machine(12, "--disable-mmap"), T5, HostTier.STAGED, "--disable-mmap lets nothing be read"),
        # those that are in a file only would come beside it
        ("auto", machine(12, ram_available=gb(6)), IN_A_FILE, HostTier.MAPPED, None),
        ("auto", machine(12, ram_available=gb(12)), IN_A_FILE, HostTier.PINNED, None),
        ("pinned", machine(12, ram_available=gb(6)), IN_A_FILE, HostTier.STAGED, "4.00 GB are left beside"),
        ("auto", machine(12, pin_limit=gb(1)), PINNED_ALREADY, HostTier.PINNED, None),
        ("auto", machine(12, pin_limit=0, ram_available=0), PINNED_ALREADY, HostTier.PINNED, None),
        ("auto", cpu_machine(), TE_ON_CPU, HostTier.MAPPED, None),
        ("pinned", cpu_machine(), TE_ON_CPU, HostTier.MAPPED, "pinned has no meaning on the CPU"),
        ("mapped", cpu_machine(), TE_ON_CPU, HostTier.MAPPED, None),
    ],
)
def test_host_tiers(
    wish: str, facts: MachineFacts, of: ComponentFacts, tier: HostTier, says: str | None
) -> None:
    decision = one(asks("layerwise", host=wish), facts, of)
    assert decision.host_tier is tier
    assert (says in decision.why) if says else decision.limits == ()
    assert decision.host_reason, "the choice always has a reason"


def test_pinned_memory_goes_to_those_that_copy_most() -> None:
    once, often = component("text_encoder", 6), component("transformer", 5, 40)
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
