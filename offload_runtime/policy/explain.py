"""What a policy comes to on a machine that is described in words, without ComfyUI and without a GPU."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import PolicyError
from .decision import Plan
from .facts import ComponentFacts, MachineFacts
from .policy import Policy
from .quantities import format_bytes, parse_size
from .report import PlacementRow, decision_table, unused_notes
from .resolve import resolve
from .selectors import normalize_selector

GB = 1024**3
COMPUTE_RESERVE = 8 * GB // 10
OTHERS_RESERVE = 4 * GB // 10
"""What ComfyUI keeps for activations, and on Linux for other programs unless `--reserve-vram` says otherwise."""

LAYERS = 24
LAYER_SHARE = 0.95
"""What is taken for a component whose layers are not given: the shape of a large encoder."""


def described_machine(
    vram: str, ram: str, reserve: str | None, flags: Sequence[str], accelerators: int
) -> MachineFacts:
    """Return the facts of a machine that is described on a command line.

    Args:
        vram: device memory, such as `12GB`; `0B` for a machine without an accelerator.
        ram: host memory.
        reserve: device memory that ComfyUI keeps for activations, or None for its own choice.
        flags: ComfyUI's flags, spelled as typed.
        accelerators: how many accelerators the machine has.

    Raises:
        PolicyError: an amount cannot be understood.
    """
    total, memory = parse_size(vram, "--vram"), parse_size(ram, "--ram")
    accelerator = total > 0 and "--cpu" not in flags
    kept = parse_size(reserve, "--reserve") if reserve is not None else _reserve(flags)
    headroom = _gigabytes("--vram-headroom", flags)  # only versions with dynamic VRAM have it
    dynamic = headroom is not None and "--disable-dynamic-vram" not in flags
    if dynamic:
        kept += headroom or 0
    return MachineFacts(
        device="cuda:0" if accelerator else "cpu",
        accelerator=accelerator,
        vram_total=total if accelerator else 0,
        vram_free=total if accelerator else 0,
        ram_total=memory,
        ram_available=memory,
        inference_reserve=min(kept, total),
        accelerators=accelerators if accelerator else 0,
        dynamic_vram=accelerator and dynamic,
        flags=tuple(flags),
    )


def described_components(text: str, machine: MachineFacts) -> tuple[ComponentFacts, ...]:
    """Read `text_encoder=9.5GB:24,vae=0.3GB`: name, size of the weights, and how many layers hold them.

    Raises:
        PolicyError: an entry cannot be understood, or a name is there twice.
    """
    components: dict[str, ComponentFacts] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, equals, amount = entry.partition("=")
        if not equals:
            raise PolicyError(f"--components: “{entry[:60]}” is not NAME=SIZE, such as text_encoder=9.5GB")
        component = normalize_selector(name)
        if component in components:
            raise PolicyError(
                f"--components: {component} is there twice; number the second one {component}_2"
            )
        components[component] = _described(component, amount, machine)
    if not components:
        raise PolicyError("--components names nothing; write it as text_encoder=9.5GB,transformer=12GB")
    return tuple(components.values())


def explain(policy: Policy, machine: MachineFacts, components: Sequence[ComponentFacts]) -> str:
    """Return the decisions of a policy as text: the table of the report, and why.

    Raises:
        StrictPolicyError: the policy is strict, and the machine cannot do all that it asks for.
    """
    plan = resolve(policy, machine, components)
    rows = [PlacementRow.of(facts, decision) for facts, decision in zip(components, plan, strict=True)]
    unused = unused_notes(policy.unused({c.name for c in components}))
    why = [f"{row.component}: {row.why}." for row in rows]
    blocks = [_header(plan, machine), decision_table(rows), "\n".join(why), *plan.notes, *unused]
    return "\n\n".join(blocks)


def _described(component: str, amount: str, machine: MachineFacts) -> ComponentFacts:
    size, colon, layers = amount.partition(":")
    if colon and not (layers.isascii() and layers.strip().isdecimal()):
        raise PolicyError(f"--components: {component} has “{layers[:60]}” layers; write a number, such as 24")
    count = int(layers[:6]) if colon else LAYERS
    weights = parse_size(size, f"--components: {component}")
    return ComponentFacts(
        name=component,
        model=component,
        bytes=weights,
        layers=count,
        layer_bytes=int(weights * LAYER_SHARE) if count else 0,
        on_cpu=not machine.accelerator,
    )


def _reserve(flags: Sequence[str]) -> int:
    typed = _gigabytes("--reserve-vram", flags)
    return COMPUTE_RESERVE + (OTHERS_RESERVE if typed is None else typed)


def _gigabytes(name: str, flags: Sequence[str]) -> int | None:
    """Return the bytes of a flag that is typed in GB, or None when it is not there."""
    typed = next((flag.partition(" ")[2] for flag in flags if flag.startswith(f"{name} ")), None)
    return None if typed is None else parse_size(f"{typed}GB", name)


def _header(plan: Plan, machine: MachineFacts) -> str:
    parts = [f"Placement plan · mode {plan.mode} · computes on {machine.device}"]
    if machine.accelerator:
        parts.append(f"room for weights {plan.room}")
    parts.append(f"memory {format_bytes(machine.ram_total)}")
    if machine.flags:
        parts.append(f"started with {' '.join(machine.flags)}")
    return " · ".join(parts)
