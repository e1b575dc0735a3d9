"""A plan in force: decided again whenever one of its components is about to be loaded for a new prompt.

ComfyUI keeps what our node hands on, so the node does not run again while nothing before it changes. What the runs
have taught meanwhile (how often layers run, what ComfyUI asked for beside the weights, how large the models beside
are, what other programs hold) counts from the next load on all the same, for whatever nobody set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..errors import StrictPolicyError
from ..log import information
from ..policy import Beside, ComponentFacts, Decision, MachineFacts, Plan, Policy
from ..policy.lessons import is_same, lessons, steadied
from ..policy.making_room import resolve_with_room
from . import hardware
from .making_room import MakingRoom
from .placed import Placed, Placements
from .record import record_of
from .rounds import running_prompt
from .whole_prompt import Around, bystanders_now


class Standing:
    """What one of our nodes has placed, with all that it was decided from but the models.

    Args:
        policy: what was asked for.
        machine: the facts of the machine that it was decided from.
        placed: what was placed.
        kept: what earlier loaders have placed.
        around: what else the prompt uses.
        beside: what was beside it.
        room: what is made for it.
    """

    def __init__(
        self,
        policy: Policy,
        machine: MachineFacts,
        placed: Sequence[Placed],
        kept: Placements,
        around: Around,
        beside: Beside,
        room: MakingRoom,
    ) -> None:
        self._policy = policy
        self._placed = tuple(placed)
        self._kept = kept
        self._around = around
        self._room = room
        self._made_from = machine, self._facts(), beside
        self._prompt = running_prompt()
        for one in self._placed:
            one.on_use(self.decide)
            one.room = room

    def decide(self) -> None:
        """Decide again, once in a prompt; a prompt that nobody names is taken for the one before."""
        prompt = running_prompt()
        if prompt is None or prompt == self._prompt:
            return
        self._prompt = prompt
        machine = self._room.on(steadied(self._made_from[0], hardware.machine_facts()))
        facts = self._facts()
        models = [model for one in (*self._kept.placed, *self._placed) if (model := one.model) is not None]
        beside = Beside(self._kept.decided, bystanders_now(self._around, models))
        if (machine, facts, beside) == self._made_from:
            return
        try:
            plan = resolve_with_room(self._policy, machine, facts, beside)
        except StrictPolicyError:
            return  # nothing of what was set has changed; the node refuses when it runs again
        self._room.decided(plan)
        if self._all_follow(plan, machine, facts):
            self._made_from = machine, facts, beside  # else it is tried again for the next prompt

    def decided_with(
        self, policy: Policy, machine: MachineFacts, earlier: Mapping[str, Decision]
    ) -> dict[str, Decision]:
        """Return what would be decided if more was asked for, by component name.

        Args:
            policy: what more would be asked for.
            machine: the facts of the machine.
            earlier: component name → what would be decided for what earlier loaders have placed.

        Raises:
            StrictPolicyError: that would be refused.
        """
        kept = tuple((facts, earlier.get(facts.name, was)) for facts, was in self._kept.decided)
        models = [model for one in (*self._kept.placed, *self._placed) if (model := one.model) is not None]
        beside = Beside(kept, bystanders_now(self._around, models))
        asked = self._policy.extended(policy)
        plan = resolve_with_room(asked, self._room.on(machine), self._facts(), beside)
        return {decision.component: decision for decision in plan}

    def _all_follow(self, plan: Plan, machine: MachineFacts, facts: Sequence[ComponentFacts]) -> bool:
        """Carry another plan out; return whether all could follow: what is on the device may have to stay for now."""
        why = lessons(self._made_from[:2], (machine, facts)) or "what is beside it has another size"
        changed = [
            (one, has, decision)
            for one, has, decision in zip(self._placed, facts, plan, strict=True)
            if one.decision.asked is None and not is_same(one.decision, decision)
        ]
        changed.sort(key=_growth)  # nobody gets what another one still holds
        followed = True
        for one, has, decision in changed:
            if not followed and _growth((one, has, decision)) > 0:
                break
            text = f"{decision.reason}; decided anew before this run, because {why}"
            follows = one.follow(has, replace(decision, reason=text))
            if follows:
                information("%s: %s, decided anew, because %s", has.name, decision.placement, why)
            followed = followed and follows
        return followed

    def _facts(self) -> tuple[ComponentFacts, ...]:
        return tuple(_learnt(one) for one in self._placed)


def _growth(change: tuple[Placed, ComponentFacts, Decision]) -> int:
    """Return how much more device memory a component is to have, in bytes."""
    placed, _, decision = change
    return decision.planned_bytes - placed.decision.planned_bytes


def _learnt(placed: Placed) -> ComponentFacts:
    model = placed.model
    if model is None:
        return placed.facts
    record = record_of(model)
    return replace(placed.facts, passes=record.passes, activation_bytes=record.demand)
