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
        ("auto", machine(12, ram_available=gb(6)), T5, HostTier.MAPPED, None),
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


def test_pinned_memory_goes_to_those_that_copy_most() -> None:
    once, often = component("text_encoder", 6), component("transformer", 5, 40)
    plan = resolve(asks("layerwise"), machine(12, pin_limit=gb(8)), (once, often))
    assert [plan[c.name].host_tier for c in (once, often)] == [HostTier.STAGED, HostTier.PINNED]
    asked = asks("layerwise").extended(Policy.for_component(OVERRIDE, "text_encoder", host="pinned"))
    plan = resolve(asked, machine(12, pin_limit=gb(8)), (once, often))
    assert [plan[c.name].host_tier for c in (once, often)] == [HostTier.PINNED, HostTier.STAGED]
