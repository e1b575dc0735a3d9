"""What was resolved: one decision per component, and the plan that holds them together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .arguments import Argument, Source
from .components import HostTier, Mode, Placement
from .host_bytes import HostBytes
from .policy import Policy
from .quantities import Budget
from .settings import Setting


@dataclass(frozen=True)
class Decision:
    """What was resolved for one component. All sizes are bytes.

    Attributes:
        component: its component name.
        placement: the resolved placement; `auto` means left to ComfyUI.
        asked: the explicit placement, or None when nobody set one.
        source: who set it, or None.
        reason: why, in a sentence for people.
        planned_bytes: device memory that the plan counts for it: between its uses, or during its use when
            it is offloaded.
        budget_bytes: device memory that it may hold at most, or None where the plan sets no limit: then a
            layerwise component holds its window only, and any other what ComfyUI gives it.
        budget_asked: device memory that somebody allowed it, or None. It may be more than what the plan
            counts for it; a component that takes memory in pages is held to this.
        host_tier: where the masters of its layers should wait, or None when it is not streamed.
        host_reason: why they should wait there, in a sentence for people.
        gives_way: whether ComfyUI may take weights of what was to be whole, and those are streamed from then on
            instead of loaded and taken again for every prompt.
        host_bytes: where on the host its weights wait between its uses as the plan has it, or None where ComfyUI
            chooses as it goes.
        look_ahead: whether the next layer may be copied while one computes.
        device: the device that computes it.
        limits: what the machine could not do of what was asked, in sentences for people.
        overruled: the explicit values that lost, nearest first.
    """

    component: str
    placement: Placement
    asked: Placement | None
    source: Source | None
    reason: str
    planned_bytes: int = 0
    budget_bytes: int | None = None
    budget_asked: int | None = None
    host_tier: HostTier | None = None
    host_reason: str = ""
    gives_way: bool = False
    host_bytes: HostBytes | None = None
    look_ahead: bool = True
    device: str = ""
    limits: tuple[str, ...] = ()
    overruled: tuple[Argument, ...] = ()

    @property
    def why(self) -> str:
        """The reason, and how far the machine could follow."""
        return "; but ".join((self.reason, *self.limits[:1])) + "".join(
            f"; {text}" for text in self.limits[1:]
        )

    @property
    def flexible(self) -> bool:
        """Whether nobody asked how much device memory it may hold: then it may take the room of others for a while.

        Who asks for mode `memory` does, and a component that it streams is planned with no spare room.
        """
        spare = self.placement is not Placement.LAYERWISE or self.budget_bytes is not None
        return self.asked is None and self.budget_asked is None and spare

    @property
    def held_bytes(self) -> int:
        """Device memory that it holds between its uses."""
        return 0 if self.placement is Placement.OFFLOAD else self.planned_bytes


@dataclass(frozen=True)
class Plan:
    """The decisions of one workflow, in the order of its components.

    Attributes:
        decisions: one per component.
        mode: what automatic choices aimed for.
        total_budget: the VRAM that all weights together may hold, if somebody set one.
        room_bytes: device memory that the weights of all components may take together.
        room: the same for people, with what was taken off the card.
        activations: device memory that is left for activations beside that, the margin after a failure apart.
        notes: what the machine could not do of what was asked for the workflow as a whole.
    """

    decisions: tuple[Decision, ...]
    mode: Mode = Mode.AUTO
    total_budget: Budget | None = None
    room_bytes: int = 0
    room: str = ""
    activations: int = 0
    notes: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Decision]:
        return iter(self.decisions)

    def __len__(self) -> int:
        return len(self.decisions)

    def __getitem__(self, component: str) -> Decision:
        """Return the decision of a component.

        Raises:
            KeyError: the plan has no such component.
        """
        for decision in self.decisions:
            if decision.component == component:
                return decision
        raise KeyError(component)

    def as_policy(self, source: Source) -> Policy:
        """Return the explicit policy that asks for what was decided; what is left to ComfyUI stays unset."""
        arguments = [Argument(Setting.MODE, "all", self.mode, source)]
        if self.total_budget is not None:
            arguments.append(Argument(Setting.TOTAL_BUDGET, "all", self.total_budget, source))
        for decision in self.decisions:
            if decision.placement is Placement.AUTO:
                continue
            name = decision.component
            arguments.append(Argument(Setting.PLACEMENT, name, decision.placement, source))
            # Where nobody set one, it is what the card had left: as a budget it would stream what was to be whole.
            allowed = decision.placement is Placement.LAYERWISE or decision.budget_asked is not None
            if decision.budget_bytes is not None and allowed:
                arguments.append(Argument(Setting.BUDGET, name, Budget(bytes=decision.budget_bytes), source))
            if decision.host_tier is not None:
                arguments.append(Argument(Setting.HOST, name, decision.host_tier, source))
        return Policy(tuple(arguments))
