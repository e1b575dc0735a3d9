"""From a policy and the facts to one decision per component: explicit values first, rules for the rest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .arguments import Argument, Source
from .components import Mode, Placement
from .facts import ComponentFacts, MachineFacts
from .policy import Policy
from .quantities import Budget, format_bytes
from .rules import decide


@dataclass(frozen=True)
class Decision:
    """What was resolved for one component.

    Attributes:
        component: its component name.
        placement: the resolved placement; `auto` means left to ComfyUI.
        asked: the explicit placement, or None when nobody set one.
        source: who set it, or None.
        reason: why, in a sentence for people.
        budget_bytes: device memory that the component may hold resident, or None for no limit of ours.
        overruled: the explicit placements that lost, nearest first.
    """

    component: str
    placement: Placement
    asked: Placement | None
    source: Source | None
    reason: str
    budget_bytes: int | None = None
    overruled: tuple[Argument, ...] = ()


def resolve(
    policy: Policy, machine: MachineFacts, components: Iterable[ComponentFacts]
) -> tuple[Decision, ...]:
    """Decide the placement of every component.

    An explicit placement is never replaced: what the machine cannot do of it is for the adapter to say when
    it applies the decision.
    """
    return tuple(_resolve_one(policy, machine, component) for component in components)


def _resolve_one(policy: Policy, machine: MachineFacts, component: ComponentFacts) -> Decision:
    explicit = policy.explicit
    budget, budget_reason = _budget(policy, machine, component.name)
    candidates = explicit.candidates("placement", component.name)
    if candidates:
        won, *lost = candidates
        assert isinstance(won.value, Placement)
        reason = f"set by {won.source}"
        if lost:
            reason += f", which wins over {lost[0].value} from {lost[0].source}"
        placement, asked, source = won.value, won.value, won.source
    else:
        lost = []
        placement, reason = decide(component, machine, _mode(policy))
        asked, source = None, None
    return Decision(component.name, placement, asked, source, reason + budget_reason, budget, tuple(lost))


def _mode(policy: Policy) -> Mode:
    won = policy.explicit.winner("mode")
    return won.value if won is not None and isinstance(won.value, Mode) else Mode.AUTO


def _budget(policy: Policy, machine: MachineFacts, component: str) -> tuple[int | None, str]:
    won = policy.explicit.winner("budget", component)
    if won is None or not isinstance(won.value, Budget):
        return None, ""
    if not machine.accelerator:
        return None, f"; the VRAM budget of {won.value} has no meaning on the CPU"
    size = won.value.resolve(machine.vram_total)
    reason = f"; at most {format_bytes(size)} of VRAM, set by {won.source}"
    if won.value.bytes is not None and won.value.bytes > machine.vram_total:
        reason += f", who asked for {won.value} of a {format_bytes(machine.vram_total)} card"
    return size, reason
