"""What a policy comes to on a machine that is described in words, without ComfyUI and without a GPU."""

from __future__ import annotations

from collections.abc import Sequence

from .decision import Plan
from .facts import ComponentFacts, MachineFacts
from .policy import Policy
from .quantities import format_bytes
from .report import PlacementRow, decision_table, unused_notes
from .resolver import resolve


def explain(policy: Policy, machine: MachineFacts, components: Sequence[ComponentFacts]) -> str:
    """Return the decisions of a policy as text: the table of the report, and why.

    Raises:
        StrictPolicyError: the policy is strict, and the machine cannot do all that it asks for.
    """
    plan = resolve(policy, machine, components)
    rows = [PlacementRow.of(facts, decision) for facts, decision in zip(components, plan, strict=True)]
    unused = unused_notes(policy.unused({c.name for c in components}))
    why = [f"{row.component}: {row.why}. On the host: {row.host_plan}." for row in rows]
    blocks = [_header(plan, machine), decision_table(rows), "\n".join(why), *plan.notes, *unused]
    return "\n\n".join(blocks)


def _header(plan: Plan, machine: MachineFacts) -> str:
    device = machine.device
    if machine.shared_memory:
        device += ", which shares its memory with the CPU"
    if machine.dynamic_vram:
        device += " under ComfyUI's dynamic VRAM"
    parts = [f"Placement plan · mode {plan.mode} · computes on {device}"]
    if machine.accelerator:
        parts.append(f"room for weights {plan.room}")
    free, total = format_bytes(machine.ram_available), format_bytes(machine.ram_total)
    parts.append(f"memory {total}" if free == total else f"memory {free} free of {total}")
    if machine.flags:
        parts.append(f"started with {' '.join(machine.flags)}")
    return " · ".join(parts)
