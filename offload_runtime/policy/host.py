"""Where the masters of streamed layers wait: pinned memory is shared out once, the rest is staged or mapped.

Pinned memory is scarce (half of the memory on Windows), so the components that copy most per use get it first: the
ranking by bytes × passes is SGLang-Diffusion's. A component is pinned whole or not at all, because a few layers
that are not would stall together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .components import HostTier
from .facts import ComponentFacts, MachineFacts
from .quantities import format_bytes

RAM_RESERVE = 2 * 1024**3
"""Host memory that no plan takes: the system and the workflow's images live there."""

LOOP_PASSES = 20
"""How often a looping component is taken to run its layers before a trace says so."""


class Tier(NamedTuple):
    """A host tier, and why a wish for another one could not be had ("" when nobody lost)."""

    tier: HostTier
    reason: str = ""


def host_tiers(
    streamed: Sequence[ComponentFacts], wishes: Mapping[str, HostTier | None], machine: MachineFacts
) -> dict[str, Tier]:
    """Choose the host tier of every streamed component.

    Args:
        streamed: the components that run layer by layer.
        wishes: component name → the explicit tier, or None.
        machine: the machine.
    """
    chosen: dict[str, Tier] = {}
    pins = machine.ram_available if machine.pin_limit is None else machine.pin_limit
    pins = min(pins, max(0, machine.ram_available - RAM_RESERVE))
    order = sorted(streamed, key=lambda c: (wishes.get(c.name) is None, -c.layer_bytes * _passes(c), c.name))
    for component in order:
        chosen[component.name] = tier = _choose(component, wishes.get(component.name), machine, pins)
        if tier.tier is HostTier.PINNED:
            pins -= component.layer_bytes
    return chosen


def streams_on_cpu(component: ComponentFacts, machine: MachineFacts) -> bool:
    """Tell whether a streamed component computes on the CPU, where the only tier is the file."""
    return component.on_cpu or not machine.accelerator


def _choose(component: ComponentFacts, wish: HostTier | None, machine: MachineFacts, pins: int) -> Tier:
    if streams_on_cpu(component, machine):
        lost = wish not in (None, HostTier.MAPPED)
        return Tier(
            HostTier.MAPPED, f"{wish} has no meaning on the CPU: layers come from the file" if lost else ""
        )
    if wish in (HostTier.STAGED, HostTier.MAPPED):
        return Tier(wish)
    flag = machine.flag("--disable-pinned-memory")
    if flag is None and component.layer_bytes <= pins:
        return Tier(HostTier.PINNED)
    instead = HostTier.STAGED
    if wish is None:
        if component.layer_bytes > max(0, machine.ram_available - RAM_RESERVE):
            instead = HostTier.MAPPED
        return Tier(instead)
    cause = flag and f"{flag} allows no pinned memory"
    short = (
        f"its {format_bytes(component.layer_bytes)} are more than the {format_bytes(pins)} that may be pinned"
    )
    return Tier(instead, f"{cause or short}, so its layers are staged")


def _passes(component: ComponentFacts) -> int:
    return component.passes or (LOOP_PASSES if component.loops else 1)
