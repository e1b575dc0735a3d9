"""What can be carried out on a component: stated by the adapter before anything is decided.

The resolver plans inside it. What was asked for and is not in it becomes a limit of the decision, so that a strict
policy refuses exactly what would not have happened.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from .components import Placement


class Unmet(NamedTuple):
    """A placement that cannot be carried out.

    Attributes:
        placement: that placement.
        nearest: what remains of it; `auto` leaves the component to ComfyUI.
        reason: why, as the end of a sentence for people.
    """

    placement: Placement
    nearest: Placement
    reason: str


@dataclass(frozen=True)
class Capabilities:
    """What the backend of one component honours.

    Attributes:
        unmet: the placements that it cannot carry out. All others it can.
        budget_when_whole: whether it holds a component to a budget that is not streamed. All hold one that is.
        keeper: who keeps the masters of its layers on the host; "" where we do, and choose their host tier.
    """

    unmet: tuple[Unmet, ...] = ()
    budget_when_whole: bool = False
    keeper: str = ""

    @property
    def gives_way(self) -> bool:
        """Whether it can leave the device between its uses, in layers or whole."""
        unmet = self.why_not(Placement.LAYERWISE)
        return unmet is None or unmet.nearest is Placement.OFFLOAD

    def why_not(self, placement: Placement) -> Unmet | None:
        """Return what is in the way of a placement, or None when it can be carried out."""
        return next((unmet for unmet in self.unmet if unmet.placement is placement), None)

    def without(self, placement: Placement, nearest: Placement, reason: str) -> Capabilities:
        """Return the same without a placement; the first reason that was given for one stays."""
        return replace(self, unmet=(*self.unmet, Unmet(placement, nearest, reason)))


STREAMED = Capabilities()
"""We copy layers into slots, or let the CPU read them from the model file; what is whole is ComfyUI's."""

PAGED = Capabilities(budget_when_whole=True, keeper="ComfyUI's dynamic VRAM")
"""ComfyUI pages the weights in by itself, and we say whose pages go first, and how many may be there."""


def cannot_copy(can: Capabilities, device: str) -> Capabilities:
    """Return what is left on a device (or with a flag, as typed) to which nothing is copied while it computes."""
    reason = f"{device} cannot copy layers while it computes"
    return can.without(Placement.LAYERWISE, Placement.OFFLOAD, reason)


def not_ours(why: str) -> Capabilities:
    """Return what can be done with weights that ComfyUI's memory manager does not know: nothing.

    Args:
        why: what moves them, as a clause.
    """
    can = Capabilities()
    for placement in (Placement.RESIDENT, Placement.LAYERWISE, Placement.OFFLOAD, Placement.CPU):
        can = can.without(placement, Placement.AUTO, why)
    return can


def not_movable(can: Capabilities, model: str) -> Capabilities:
    """Return what is left of a model (its class, for people) that ComfyUI keeps on the device."""
    reason = f"ComfyUI does not allow this {model} to be offloaded"
    return can.without(Placement.LAYERWISE, Placement.AUTO, reason).without(
        Placement.OFFLOAD, Placement.AUTO, reason
    )
