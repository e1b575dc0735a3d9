"""Who gets how much device memory: the room for weights is shared out once, and never more than there is.

The order of claims: the window of every streamed component, or it could not run; what people asked for by name;
what ComfyUI and the automatic rules keep whole, a VAE and the diffusion model before any encoder; and what is left
over as resident layers of streamed components, those that loop first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .components import Placement, group_of
from .facts import ComponentFacts
from .situation import Situation, Wish

_FIRST_IN = ("vae", "dit", "image_encoder", "text_encoder", None)
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
    total = now.machine.vram_total
    budgets = {name: wish.budget.resolve(total) for name, wish in wishes.items() if wish.budget is not None}
    on_device = [c for c in components if now.machine.accelerator and not c.on_cpu]
    held = [c for c in on_device if placements[c.name] not in (Placement.CPU, Placement.OFFLOAD)]
    streamed = [c for c in held if placements[c.name] is Placement.LAYERWISE]
    whole = sorted((c for c in held if c not in streamed), key=_worth)
    given = dict.fromkeys((c.name for c in components), 0)
    limit = {c.name: _limit(c, placements[c.name], budgets.get(c.name), now) for c in on_device}
    left = now.room.bytes

    def give(component: ComponentFacts, upto: int) -> None:
        nonlocal left
        more = min(max(0, min(upto, limit[component.name]) - given[component.name]), left)
        given[component.name] += more
        left -= more

    for component in streamed:
        give(component, component.window)
    for component in whole:
        if wishes[component.name].placement is not None:
            give(component, component.device_bytes)
    for component in streamed:
        if component.name in budgets:
            give(component, component.device_bytes)
    for component in whole:
        give(component, component.device_bytes)
    for component in sorted(streamed, key=lambda c: (not c.loops, -c.bytes, c.name)):
        if component.name in spare:
            give(component, component.device_bytes)

    for component in on_device:
        if placements[component.name] is Placement.OFFLOAD:
            given[component.name] = min(limit[component.name], now.room.bytes)
    return {c.name: Share(given[c.name], _wanted(c, placements[c.name], limit, now)) for c in components}


def _limit(c: ComponentFacts, placement: Placement, budget: int | None, now: Situation) -> int:
    if placement is not Placement.OFFLOAD and now.machine.flag("--novram"):
        return c.window if placement is Placement.LAYERWISE else 0  # nothing may stay between uses
    return c.device_bytes if budget is None else min(budget, c.device_bytes)


def _wanted(c: ComponentFacts, placement: Placement, limit: Mapping[str, int], now: Situation) -> int:
    if not now.machine.accelerator or c.on_cpu or placement is Placement.CPU:
        return 0
    return min(c.window, limit[c.name]) if placement is Placement.LAYERWISE else limit[c.name]


def _worth(component: ComponentFacts) -> tuple[int, int, str]:
    return _FIRST_IN.index(group_of(component.name)), component.bytes, component.name
