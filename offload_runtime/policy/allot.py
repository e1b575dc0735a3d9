"""Who gets how much device memory: the room for weights is shared out once, and never more than there is.

The order of claims: the window of every streamed component, or it could not run; what people asked for by name;
what ComfyUI and the automatic rules keep whole, a VAE and the diffusion model before any encoder; and what is left
over as resident layers of streamed components, those that loop first. What is on the device only while it is used
needs no share, unless a budget says what all may hold: ComfyUI leaves it there until somebody needs the room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from .components import Placement, group_of
from .facts import ComponentFacts
from .situation import Situation, Wish

_FIRST_IN = ("vae", "dit", "other", "image_encoder", "text_encoder", None)
"""Groups in the order in which their bytes are worth staying."""


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
        together; an `offload` component fits in it alone.
    """
    on_device = [c for c in components if now.machine.accelerator and not c.on_cpu]
    passing = [c for c in on_device if placements[c.name] is Placement.OFFLOAD]
    held = [c for c in on_device if placements[c.name] is not Placement.CPU and c not in passing]
    streamed = [c for c in held if placements[c.name] is Placement.LAYERWISE]
    whole = sorted((c for c in held if c not in streamed), key=_worth)
    limits = {c.name: _limit(c, placements[c.name], wishes[c.name], now) for c in on_device}
    room = _Purse(limits, now.room.bytes)

    room.give(streamed, windows=True)
    room.give(c for c in whole if wishes[c.name].placement is not None)
    room.give(c for c in streamed if wishes[c.name].budget is not None)
    room.give(whole)
    streamed.sort(key=lambda c: (not c.loops, -c.bytes, c.name))
    room.give(c for c in streamed if c.name in spare)

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
    """The device memory that is left, and who has been given what of it."""

    def __init__(self, limits: Mapping[str, int], left: int) -> None:
        self.given: Counter[str] = Counter()
        self._limits = limits
        self._left = left

    def give(self, components: Iterable[ComponentFacts], *, windows: bool = False) -> None:
        """Give each component in turn its window, or all that it may have, as far as the room goes."""
        for component in components:
            limit = self._limits[component.name]
            upto = min(component.window, limit) if windows else limit
            more = min(max(0, upto - self.given[component.name]), self._left)
            self.given[component.name] += more
            self._left -= more


def _limit(component: ComponentFacts, placement: Placement, wish: Wish, now: Situation) -> int:
    limit = component.device_bytes
    if placement is not Placement.OFFLOAD and now.machine.flag("--novram"):
        limit = component.window if placement is Placement.LAYERWISE else 0  # nothing may stay between uses
    return limit if wish.budget is None else min(limit, wish.budget.resolve(now.machine.vram_total))


def _wanted(component: ComponentFacts, placement: Placement, limit: int) -> int:
    if placement is Placement.CPU:
        return 0
    return min(component.window, limit) if placement is Placement.LAYERWISE else limit


def _worth(component: ComponentFacts) -> tuple[int, int, str]:
    return _FIRST_IN.index(group_of(component.name)), component.bytes, component.name
