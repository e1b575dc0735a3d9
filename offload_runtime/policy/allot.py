"""Who gets how much device memory: the room for weights is shared out once, and never more than there is.

The order of claims: the window of every streamed component, or it could not run; what people asked for by name;
what ComfyUI and the automatic rules keep whole, a VAE and the diffusion model before any encoder; and what is left
over as resident layers of streamed components, so that the least is copied (`split`). What is on the device only
while it is used needs no share, unless a budget says what all may hold: ComfyUI leaves it there until somebody needs
the room. What is not placed now has its room beside what is left to ComfyUI, and diffusion models that run in turn
share theirs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from .beside import Claim
from .components import Placement, group_of
from .facts import ComponentFacts
from .situation import Situation, Wish
from .split import Streamed, split

_FIRST_IN = ("vae", "dit", "other", "image_encoder", "text_encoder", None)
"""Groups in the order in which their bytes are worth staying."""

_LOOPING = 8
"""Passes of what is taken to loop, until a use has shown how many there are."""


class Share(NamedTuple):
    """The device memory of one component, in bytes.

    Attributes:
        planned: what the plan counts for it: between uses, or during its use when it is offloaded.
        wanted: what it would take if there were room.
    """

    planned: int
    wanted: int


def allot(
    components: Sequence[ComponentFacts],
    placements: Mapping[str, Placement],
    wishes: Mapping[str, Wish],
    now: Situation,
    spare: frozenset[str],
) -> dict[str, Share]:
    """Share the room for weights out.

    Args:
        components: all components.
        placements: component name → what was resolved for it.
        wishes: component name → what was asked.
        now: the joint view.
        spare: names of the streamed components whose spare room becomes resident layers.

    Returns:
        Component name → its share. The shares of all components that are not `offload` fit in the room
        together, where diffusion models that run in turn count once; an `offload` component fits in it alone.
    """
    on_device = [c for c in components if now.machine.accelerator and not c.on_cpu]
    passing = [c for c in on_device if placements[c.name] is Placement.OFFLOAD]
    held = [c for c in on_device if placements[c.name] is not Placement.CPU and c not in passing]
    streamed = [c for c in held if placements[c.name] is Placement.LAYERWISE]
    whole = [c for c in held if c not in streamed]
    limits = {c.name: _limit(c, placements[c.name], wishes[c.name], now) for c in on_device}
    turns = frozenset(c.name for c in on_device if c.takes_turns and not now.room.budgeted)
    room = _Purse(limits, now.room.bytes, turns)

    room.give(streamed, windows=True)
    room.give(c for c in sorted(whole, key=_worth) if wishes[c.name].placement is not None)
    room.give(c for c in streamed if wishes[c.name].budget is not None)
    claims: list[ComponentFacts | Claim] = [*whole, *now.beside]
    for one in sorted(claims, key=_worth):
        if isinstance(one, Claim):
            room.set_aside(one)
        else:
            room.give([one])
    room.split([c for c in streamed if c.name in spare])

    if now.room.budgeted:
        room.give(sorted(passing, key=_worth))
    planned = dict(room.given)
    if not now.room.budgeted:
        planned |= {c.name: min(limits[c.name], now.room.bytes) for c in passing}
    return {
        c.name: Share(planned.get(c.name, 0), _wanted(c, placements[c.name], limits.get(c.name, 0)))
        for c in components
    }


class _Purse:
    """The device memory that is left, and who has been given what of it.

    Args:
        limits: component name → what it may have.
        left: how much there is.
        turns: names of the diffusion models that run in turn: what one is given serves the next one, too.
    """

    def __init__(self, limits: Mapping[str, int], left: int, turns: frozenset[str]) -> None:
        self.given: Counter[str] = Counter()
        self._limits = limits
        self._left = left
        self._turns = turns
        self._shared = 0  # the most that one of those has been given

    def give(self, components: Iterable[ComponentFacts], *, windows: bool = False) -> None:
        """Give each component in turn its window, or all that it may have, as far as the room goes."""
        for component in components:
            name, limit = component.name, self._limits[component.name]
            upto = min(component.window, limit) if windows else limit
            self.given[name] += self._take(upto, self.given[name], in_turn=name in self._turns)

    def split(self, components: Sequence[ComponentFacts]) -> None:
        """Give what is left to streamed components that have their windows, so that the least is copied."""
        first = sorted(components, key=lambda c: (-_passes(c), -c.bytes, c.name))
        alone = [c for c in first if c.name not in self._turns]
        self.give(c for c in first if c.name in self._turns)  # whose share serves others of them, too
        has = {c.name: self.given[c.name] for c in alone}
        room = self._left + sum(has.values())
        parts = [_streamed(c, has[c.name], self._limits[c.name]) for c in alone]
        shares = split(room, parts)
        self.given.update({name: share - has[name] for name, share in shares.items()})
        self._left = room - sum(shares.values())

    def set_aside(self, claim: Claim) -> None:
        """Take off what something needs that is not placed now, as far as the room goes."""
        self._take(claim.bytes, 0, in_turn=claim.in_turn)

    def _take(self, upto: int, has: int, *, in_turn: bool) -> int:
        """Return how much more somebody gets, who has a part of what it may have."""
        others = self._shared - has if in_turn else 0
        more = min(max(0, upto - has), others + self._left)
        self._left -= max(0, more - others)
        if in_turn:
            self._shared = max(self._shared, has + more)
        return more


def _passes(component: ComponentFacts) -> int:
    """Return how often its layers run in a run of the workflow, or are taken to until a use has shown it."""
    if component.passes is not None:
        return max(1, component.passes)
    return _LOOPING if component.loops else 1


def _streamed(component: ComponentFacts, window: int, limit: int) -> Streamed:
    layer = component.layer_bytes // max(1, component.layers)
    whole = component.device_bytes
    return Streamed(component.name, window, component.layers, layer, _passes(component), limit, whole)


def _limit(component: ComponentFacts, placement: Placement, wish: Wish, now: Situation) -> int:
    limit = component.device_bytes
    if placement is not Placement.OFFLOAD and now.machine.flag("--novram"):
        limit = component.window if placement is Placement.LAYERWISE else 0  # nothing may stay between uses
    return limit if wish.budget is None else min(limit, wish.budget.resolve(now.machine.vram_total))


def _wanted(component: ComponentFacts, placement: Placement, limit: int) -> int:
    if placement is Placement.CPU:
        return 0
    return min(component.window, limit) if placement is Placement.LAYERWISE else limit


def _worth(item: ComponentFacts | Claim) -> tuple[int, int, str]:
    group = item.group if isinstance(item, Claim) else group_of(item.name)
    return _FIRST_IN.index(group), item.bytes, item.name
