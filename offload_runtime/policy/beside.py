"""What the weights of a workflow share the device with: what an earlier loader has placed, and what is not ours.

Diffusion models that run in turn count once, the largest: when one loads, ComfyUI evicts another. Everything else
counts as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .components import Placement, base_name, group_of
from .decision import Decision
from .facts import BystanderFacts, ComponentFacts, MachineFacts
from .quantities import format_bytes

_NAMED = 3
"""How many models a reason names; the rest are counted."""


class Claim(NamedTuple):
    """The room on the device that one model needs which is not placed now.

    Attributes:
        name: what people call it.
        bytes: how much, or 0 for "not known".
        group: the group of components that it is in, or None.
        in_turn: whether it is a diffusion model that runs while no other one does.
        whose: why it is not placed now, for people.
    """

    name: str
    bytes: int
    group: str | None
    in_turn: bool
    whose: str


@dataclass(frozen=True)
class Beside:
    """What a workflow uses beside the components that are to be placed.

    Attributes:
        earlier: the components that an earlier loader has placed, with what was decided.
        bystanders: the models that come through no loader of ours.
    """

    earlier: tuple[tuple[ComponentFacts, Decision], ...] = ()
    bystanders: tuple[BystanderFacts, ...] = ()

    @property
    def components(self) -> tuple[ComponentFacts, ...]:
        """The components that an earlier loader has placed."""
        return tuple(facts for facts, _ in self.earlier)

    @property
    def video(self) -> bool:
        """Whether any of it makes video."""
        placed = any(base_name(facts.name) == "video_vae" for facts in self.components)
        return placed or any(other.video for other in self.bystanders)

    def spent(self, *, budgeted: bool) -> int:
        """Return the device memory that earlier decisions have taken for good.

        Args:
            budgeted: whether somebody said how much all may hold: then nothing gives way by itself.
        """
        return sum(d.held_bytes for facts, d in self.earlier if budgeted or not _gives_way(facts, d))

    def claims(self, machine: MachineFacts, *, budgeted: bool) -> tuple[Claim, ...]:
        """Return what else needs room on the device."""
        if (
            not machine.accelerator or budgeted
        ):  # a budget is for what we place, and ComfyUI's is not held to it
            return ()
        ours = [
            Claim(
                facts.name, _needs(facts, decision), group_of(facts.name), facts.takes_turns, "placed before"
            )
            for facts, decision in self.earlier
            if _gives_way(facts, decision) and decision.device != "cpu"
        ]
        others = [
            Claim(other.name, other.bytes, other.group, other.in_turn, "not through this Loader")
            for other in self.bystanders
            if not other.on_host
        ]
        return (*ours, *others)

    def host_bytes(self, machine: MachineFacts) -> int:
        """Return the host memory that bystanders are used from; without an accelerator that is all of them."""
        return sum(other.bytes for other in self.bystanders if other.on_host or not machine.accelerator)


ALONE = Beside()
"""Nothing is known to be beside the components."""


def joint_bytes(parts: Iterable[tuple[int, bool]]) -> int:
    """Return the room that models need together: pairs of bytes, and whether that model runs in turn with others."""
    parts = tuple(parts)
    always = sum(size for size, in_turn in parts if not in_turn)
    return always + max((size for size, in_turn in parts if in_turn), default=0)


def beside_text(claims: Sequence[Claim], turns: int) -> str:
    """Name what else needs room, as the end of a sentence; "" when nothing does.

    Args:
        claims: what needs it.
        turns: how many diffusion models run in turn.
    """
    ranked = sorted(claims, key=lambda claim: (-claim.bytes, claim.name))
    named, more = ranked[:_NAMED], ranked[_NAMED:]
    words = [_named(claim, turns) for claim in named]
    if more:
        words.append(f"{len(more)} more ({format_bytes(sum(claim.bytes for claim in more))})")
    return f" beside {' and '.join(words)}" if words else ""


def _named(claim: Claim, turns: int) -> str:
    size = format_bytes(claim.bytes) if claim.bytes else "of unknown size"
    in_turn = ", in turn with the others" if claim.in_turn and turns > 1 else ""
    return f"{claim.name} ({size}{in_turn}, {claim.whose})"


def _gives_way(facts: ComponentFacts, decision: Decision) -> bool:
    """Tell whether an earlier decision holds no memory against others: ComfyUI moves it, or it is another's turn."""
    left_to_comfyui = decision.placement is Placement.AUTO and decision.budget_asked is None
    return left_to_comfyui or facts.takes_turns


def _needs(facts: ComponentFacts, decision: Decision) -> int:
    return facts.device_bytes if decision.placement is Placement.AUTO else decision.held_bytes
