"""Where the masters of streamed layers wait: pinned memory is shared out once, the rest is staged or mapped.

Pinned memory is scarce (half of the memory on Windows), so the components that copy most per use get it first: the
ranking by bytes × passes is SGLang-Diffusion's. A component is pinned whole or not at all, because a few layers
that are not would stall together. Masters are replaced in place, so what counts against free memory is what pinning
adds: one layer for a time, and all of those that are in no memory of their own yet.
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
    """A host tier.

    Attributes:
        reason: why it is this one, in a sentence for people.
        lost: whether another one was asked for.
    """

    tier: HostTier
    reason: str
    lost: bool = False


class _Left(NamedTuple):
    """What is left of a machine's host memory, in bytes: to be pinned (None for "not known"), and free."""

    pins: int | None
    memory: int

    def without(self, component: ComponentFacts) -> _Left:
        """Return what pinning a component leaves."""
        pins = None if self.pins is None else self.pins - _to_pin(component)
        return _Left(pins, self.memory - component.bytes_to_add)


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
    left = _Left(machine.pin_limit, max(0, machine.ram_available - RAM_RESERVE))
    can_be_met = {
        c.name: not _why_no_file(c, machine) or wishes.get(c.name) is not HostTier.MAPPED for c in streamed
    }
    asked = {name: wish for name, wish in wishes.items() if wish is not None and can_be_met.get(name)}
    order = sorted(streamed, key=lambda c: (c.name not in asked, -c.layer_bytes * _passes(c), c.name))
    for component in order:
        chosen[component.name] = tier = _choose(component, wishes.get(component.name), machine, left)
        if tier.tier is HostTier.PINNED:
            left = left.without(component)
    return chosen


def streams_on_cpu(component: ComponentFacts, machine: MachineFacts) -> bool:
    """Tell whether a streamed component computes on the CPU, where the only tier is the file."""
    return component.on_cpu or not machine.accelerator


def _choose(component: ComponentFacts, wish: HostTier | None, machine: MachineFacts, left: _Left) -> Tier:
    if streams_on_cpu(component, machine):
        if wish in (None, HostTier.MAPPED):
            return _mapped(component, "the CPU computes it, so its layers come from the file")
        return Tier(
            HostTier.MAPPED, f"{wish} has no meaning on the CPU: layers come from the file", lost=True
        )
    if wish is HostTier.MAPPED and (no_file := _why_no_file(component, machine)):
        tier, why, _ = _choose(component, None, machine, left)
        return Tier(tier, f"mapped was asked for, and {no_file}; {why}", lost=True)
    if wish is HostTier.MAPPED:
        return _mapped(component, f"{wish} was asked for")
    if wish is HostTier.STAGED:
        return Tier(wish, f"{wish} was asked for")
    size = format_bytes(component.layer_bytes)
    why_not = _why_not_pinned(component, machine, left)
    if not why_not:
        adds = format_bytes(component.bytes_to_add) if component.bytes_to_add else "no memory"
        return Tier(
            HostTier.PINNED, f"its {size} may be pinned, which takes {adds} beside what they take now"
        )
    if wish is None and _takes(component) > left.memory and not _why_no_file(component, machine):
        return Tier(HostTier.MAPPED, f"{why_not}, so its layers are read from the file")
    return Tier(HostTier.STAGED, f"{why_not}, so its layers are staged", lost=wish is not None)


def _mapped(component: ComponentFacts, reason: str) -> Tier:
    """Return the tier that reads from files, and say what had to be written to one first, or could not be."""
    if component.why_not_stored:
        missing = f"some of its layers are in no model file, and {component.why_not_stored}"
        return Tier(HostTier.MAPPED, f"{reason}; {missing}", lost=True)
    if component.stored_bytes:
        size = format_bytes(component.stored_bytes)
        stored = f"{size} of it that no model file holds were written to {component.stored_in}"
        return Tier(HostTier.MAPPED, f"{reason}; {stored}")
    return Tier(HostTier.MAPPED, reason)


def _why_not_pinned(component: ComponentFacts, machine: MachineFacts, left: _Left) -> str:
    flag = machine.flag("--disable-pinned-memory")
    if flag is not None:
        return f"{flag} allows no pinned memory"
    size = format_bytes(component.layer_bytes)
    if left.pins is not None and _to_pin(component) > left.pins:
        return f"its {size} are more than the {format_bytes(max(0, left.pins))} that may be pinned"
    if _takes(component) > left.memory:
        return (
            f"pinning its {size} takes {format_bytes(_takes(component))} of memory for a time, and "
            f"{format_bytes(max(0, left.memory))} are left beside {format_bytes(RAM_RESERVE)} for the system"
        )
    return ""


def _why_no_file(component: ComponentFacts, machine: MachineFacts) -> str:
    """Say why its layers cannot be read from a file, as far as anybody has looked; "" when they can."""
    flag = machine.flag("--disable-mmap")
    if flag is not None:
        return f"{flag} lets nothing be read from the file"
    return component.why_no_file if component.file_bytes == 0 else ""


def _to_pin(component: ComponentFacts) -> int:
    return max(0, component.layer_bytes - component.pinned_bytes)


def _takes(component: ComponentFacts) -> int:
    """Return the memory that packing takes at its peak: masters are replaced in place, one layer at a time."""
    if not _to_pin(component):
        return 0
    return component.bytes_to_add + component.layer_bytes // max(1, component.layers)


def _passes(component: ComponentFacts) -> int:
    return component.passes or (LOOP_PASSES if component.loops else 1)
