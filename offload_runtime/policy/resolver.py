"""From a policy and the facts to one decision per component: explicit values first, rules for the rest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ..errors import StrictPolicyError
from .allot import Share, allot
from .arguments import Argument, ExplicitArguments
from .beside import ALONE, Beside
from .bounds import bound
from .command_line import command_line_policy
from .components import HostTier, Mode, Placement
from .decision import Decision, Plan
from .facts import ComponentFacts, MachineFacts
from .host import Tier, host_tiers, streams_on_cpu
from .host_bytes import planned_on_host
from .limits import (
    budget_limits,
    device_limits,
    host_limits,
    least_limits,
    refusal,
    shortfall,
    workflow_notes,
)
from .policy import Policy
from .quantities import Budget, format_bytes
from .rules import decide
from .settings import Setting
from .situation import Situation, Wish, can_give_way, situation


def resolve(
    policy: Policy,
    machine: MachineFacts,
    components: Iterable[ComponentFacts],
    beside: Beside = ALONE,
) -> Plan:
    """Decide the placement of every component of a workflow, and share the device memory out.

    An explicit placement is never replaced by a rule. What the machine cannot do of it is done as far as
    possible, and the decision says how far. The plan never takes more device memory than there is.

    Args:
        policy: what was asked for; the command line is added from the facts of the machine.
        machine: the machine.
        components: the components to decide, with distinct names.
        beside: what else the workflow uses: what an earlier loader has placed, and what is not ours to place.

    Raises:
        StrictPolicyError: the policy is strict, and the machine cannot do all that it asks for.
    """
    components = tuple(components)
    explicit = command_line_policy(machine).extended(policy).explicit
    case = _case(explicit, machine, components, beside)
    plan = Plan(
        decisions=tuple(case.decision(component) for component in components),
        mode=case.now.mode,
        total_budget=explicit.value(Budget, Setting.TOTAL_BUDGET),
        room_bytes=case.now.room.bytes,
        room=case.now.room.text,
        activations=case.now.room.activations,
        notes=workflow_notes(explicit, machine),
    )
    strict = explicit.winner(Setting.STRICT)
    if strict is not None and strict.value and (why := refusal(plan, strict)):
        raise StrictPolicyError(why)
    return plan


def _case(
    explicit: ExplicitArguments, machine: MachineFacts, components: Sequence[ComponentFacts], beside: Beside
) -> _Case:
    """Place every component, what was asked first, and share the memory out."""
    mode = explicit.value(Mode, Setting.MODE) or Mode.AUTO
    asked = {c.name: _asked(explicit, c, machine) for c in components}
    wishes = {
        name: Wish(placed.placement if placed else None, explicit.value(Budget, Setting.BUDGET, name))
        for name, placed in asked.items()
    }
    total_budget = explicit.value(Budget, Setting.TOTAL_BUDGET)
    now = situation(machine, mode, components, wishes, total_budget, beside)
    placed = {c.name: asked[c.name] or _automatic(c, now) for c in components}
    spare = frozenset(c.name for c in components if _keeps_spare(explicit, c.name, mode))
    shares = _share(components, placed, wishes, now, spare)
    while cut := [c for c in components if _is_cut(c, placed[c.name], wishes[c.name], shares[c.name], now)]:
        placed |= {c.name: _within_budget(placed[c.name], c, shares[c.name], machine) for c in cut}
        shares = _share(components, placed, wishes, now, spare)
    tiers = _host_tiers(explicit, components, {name: p.placement for name, p in placed.items()}, machine)
    return _Case(explicit, now, placed, shares, tiers, spare)


class _Placed(NamedTuple):
    """A component's placement, and whether it has been looked at what a budget leaves of it."""

    placement: Placement
    reason: str
    limits: tuple[str, ...] = ()
    budgeted: bool = False


class _Case(NamedTuple):
    """All that the decisions of one workflow are made of."""

    explicit: ExplicitArguments
    now: Situation
    placed: Mapping[str, _Placed]
    shares: Mapping[str, Share]
    tiers: Mapping[str, Tier]
    spare: frozenset[str]

    def decision(self, component: ComponentFacts) -> Decision:
        """Put one component's decision together."""
        name, machine = component.name, self.now.machine
        placed, share, tier = self.placed[name], self.shares[name], self.tiers.get(name)
        found = {setting: self.explicit.candidates(setting, name) for setting in _SETTINGS}
        asked, budget, host, device = (next(iter(candidates), None) for candidates in found.values())
        streams = placed.placement is Placement.LAYERWISE and not streams_on_cpu(component, machine)
        gives_way = asked is None and placed.placement is Placement.RESIDENT and self._yields(component)
        waits = machine.flag("--disable-async-offload") if streams or gives_way else None
        short = shortfall(placed.placement, share.planned, share.wanted, self.now)
        if placed.placement is Placement.AUTO:
            short = ""  # ComfyUI loads as much of it as fits, which is what it is left to do
        reason = placed.reason + (f"; {short}" if short and asked is None else "")
        if budget is not None and placed.placement is Placement.CPU:
            reason += f"; it takes none of the {budget.value} of VRAM that {budget.asked_by} allows"
        elif budget is not None and machine.accelerator and not component.on_cpu:
            reason += f"; at most {budget.value} of VRAM, set by {budget.asked_by}"
        if gives_way:
            reason += "; what ComfyUI takes of it for a sampler is streamed"
        if component.replaces:
            reason += f"; it replaces {component.replaces}"
        if waits is not None and streams:
            reason += f"; {waits} allows no look-ahead, so every layer is waited for"
        limits = (
            *placed.limits,
            *(
                [short]
                if short and asked is not None
                else budget_limits(budget, component, placed.placement, share.planned, machine)
            ),
            *least_limits(component, self._bound_to(component, budget)),
            *([tier.reason] if tier is not None and tier.lost else []),
            *host_limits(host, component, placed.placement),
            *device_limits(device, machine),
        )
        return Decision(
            component=name,
            placement=placed.placement,
            asked=_placement(asked),
            source=asked.source if asked is not None else None,
            reason=reason,
            planned_bytes=share.planned,
            budget_bytes=self._enforced(component, budget is not None),
            budget_asked=self._allowed(component, budget),
            host_tier=tier.tier if tier is not None else None,
            host_reason=tier.reason if tier is not None else "",
            gives_way=gives_way,
            host_bytes=planned_on_host(
                component, placed.placement, tier.tier if tier is not None else None, share.planned, machine
            ),
            look_ahead=waits is None,
            device="cpu" if component.on_cpu or placed.placement is Placement.CPU else machine.device,
            limits=limits,
            overruled=tuple(loser for candidates in found.values() for loser in candidates[1:]),
        )

    def _allowed(self, component: ComponentFacts, budget: Argument | None) -> int | None:
        """Return the device memory that somebody allowed a component, by name or as its share of a total.

        What the plan leaves of a total is shared out evenly: whoever moves memory in larger pieces needs it.
        """
        card = self.now.machine.vram_total
        allowed = []
        if budget is not None and isinstance(budget.value, Budget):
            allowed.append(budget.value.resolve(card))
        if self.now.room.budgeted:
            left = self.now.room.bytes - sum(share.planned for share in self.shares.values())
            allowed.append(self.shares[component.name].planned + max(0, left) // len(self.shares))
        return min(allowed, default=None)

    def _yields(self, component: ComponentFacts) -> bool:
        """Tell whether what ComfyUI takes of a component that was to be whole can be streamed from then on.

        Nobody knows how much memory a sampler will ask for beside the weights, so what fits may lose some of them.
        """
        machine, can = self.now.machine, component.can
        copies = machine.accelerator and not machine.shared_memory and not can.keeper
        return copies and can_give_way(component) and can.why_not(Placement.LAYERWISE) is None

    def _bound_to(self, component: ComponentFacts, budget: Argument | None) -> int:
        """Return the device memory that somebody allowed a component that is moved in parts, or what it takes."""
        allowed, placement = self._allowed(component, budget), self.placed[component.name].placement
        on_device = self.now.machine.accelerator and not component.on_cpu and placement is not Placement.CPU
        if allowed is not None and on_device and component.can.budget_when_whole:
            return allowed
        streamed = placement is Placement.LAYERWISE and on_device and allowed is not None
        return self.shares[component.name].planned if streamed else component.least_bytes

    def _enforced(self, component: ComponentFacts, budgeted: bool) -> int | None:
        """Return the device memory that the adapter must hold a component to, or None for no limit of ours."""
        placement, planned = self.placed[component.name].placement, self.shares[component.name].planned
        if not self.now.machine.accelerator or component.on_cpu or placement is Placement.CPU:
            return None
        if placement is Placement.LAYERWISE:
            return planned if component.name in self.spare else None
        cut = placement is Placement.RESIDENT and planned < component.device_bytes
        return planned if budgeted or cut else None


def _share(
    components: Sequence[ComponentFacts],
    placed: Mapping[str, _Placed],
    wishes: Mapping[str, Wish],
    now: Situation,
    spare: frozenset[str],
) -> dict[str, Share]:
    return allot(components, {name: p.placement for name, p in placed.items()}, wishes, now, spare)


def _is_cut(component: ComponentFacts, placed: _Placed, wish: Wish, share: Share, now: Situation) -> bool:
    """Tell whether a component would be whole on the device beyond a budget, and that is still to be seen to.

    One that ComfyUI pages in is held to its budget whatever its placement.
    """
    budgeted = wish.budget is not None or now.room.budgeted
    whole = placed.placement in (Placement.AUTO, Placement.RESIDENT, Placement.OFFLOAD)
    if not budgeted or not whole or placed.budgeted or component.can.budget_when_whole or component.on_cpu:
        return False
    return now.machine.accelerator and share.planned < component.device_bytes


def _within_budget(
    placed: _Placed, component: ComponentFacts, share: Share, machine: MachineFacts
) -> _Placed:
    """Let a component keep what its budget allows on the device, and stream the rest, if it can be streamed."""
    possible, why = bound(Placement.LAYERWISE, component, machine)
    size = format_bytes(component.device_bytes)
    if possible is Placement.LAYERWISE:
        kept = f"its budget is less than its {size}, so what does not fit there is streamed"
        return _Placed(possible, f"{placed.reason}; {kept}", placed.limits, budgeted=True)
    limit = f"its {size} may exceed the {format_bytes(share.planned)} of its budget: {why[-1]}"
    return placed._replace(limits=(*placed.limits, limit), budgeted=True)


_SETTINGS = (Setting.PLACEMENT, Setting.BUDGET, Setting.HOST, Setting.DEVICE)


def _placement(argument: Argument | None) -> Placement | None:
    return argument.value if argument is not None and isinstance(argument.value, Placement) else None


def _asked(explicit: ExplicitArguments, component: ComponentFacts, machine: MachineFacts) -> _Placed | None:
    """Return the explicit placement of a component, as far as the machine can do it."""
    candidates = explicit.candidates(Setting.PLACEMENT, component.name)
    wish = _placement(candidates[0]) if candidates else None
    if wish is None:
        return None
    placement, limits = bound(wish, component, machine)
    reason = f"{wish} was set by {candidates[0].asked_by}"
    if len(candidates) > 1:
        reason += f", which wins over {candidates[1].value} from {candidates[1].asked_by}"
    return _Placed(placement, reason, limits)


def _automatic(component: ComponentFacts, now: Situation) -> _Placed:
    placement, reason = decide(component, now)
    possible, limits = bound(placement, component, now.machine)
    return _Placed(possible, reason if possible is placement else "; but ".join((reason, *limits)))


def _keeps_spare(explicit: ExplicitArguments, component: str, mode: Mode) -> bool:
    """Tell whether spare room becomes resident layers of a component, should it be streamed.

    It does where a budget says how much may stay, and where a rule streams it for want of room. Who asks for
    `layerwise` and no more, or for mode `memory`, wants the window only.
    """
    if explicit.is_explicit(Setting.TOTAL_BUDGET) or explicit.is_explicit(Setting.BUDGET, component):
        return True
    return mode is not Mode.MEMORY and not explicit.is_explicit(Setting.PLACEMENT, component)


def _host_tiers(
    explicit: ExplicitArguments,
    components: Sequence[ComponentFacts],
    placements: Mapping[str, Placement],
    machine: MachineFacts,
) -> dict[str, Tier]:
    streamed = [c for c in components if placements[c.name] is Placement.LAYERWISE and not c.can.keeper]
    wishes: dict[str, HostTier | None] = {
        c.name: explicit.value(HostTier, Setting.HOST, c.name) for c in streamed
    }
    return host_tiers(streamed, wishes, machine)
