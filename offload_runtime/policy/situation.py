"""The joint view: how much device memory the weights of a workflow may take, and who gives way when they do not fit.

One solve over all components and their activations, instead of a threshold for each: where everything fits
together nothing is streamed, and where it does not, encoders give way, not the diffusion model. (Measured on
the simulator: streaming what fits costs 0.36 s a prompt for nothing; evicting the diffusion model for an encoder
costs up to ten times what streaming the encoder does.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .components import Mode, Placement, base_name, group_of, is_encoder
from .facts import ComponentFacts, MachineFacts
from .quantities import Budget, format_bytes

VIDEO_ACTIVATIONS = 0.25
"""Share of the card kept for the activations of a video workflow until they are known."""


class Wish(NamedTuple):
    """What is asked for one component, as far as the machine can do it.

    Attributes:
        placement: the explicit placement after the bounds of the machine, or None.
        budget: the explicit VRAM budget of the component alone, or None.
    """

    placement: Placement | None = None
    budget: Budget | None = None


class Room(NamedTuple):
    """Device memory for the weights of all components together.

    Attributes:
        bytes: how much it is.
        text: the same for people, with what was taken off the card.
        activations: how much was kept for activations.
        budgeted: whether it is what somebody allowed, and not what the card has.
    """

    bytes: int
    text: str
    activations: int
    budgeted: bool = False


@dataclass(frozen=True)
class Situation:
    """Everything that a rule may look at beside the component itself.

    Attributes:
        machine: the machine.
        mode: what automatic choices aim for.
        video: whether the workflow makes video.
        room: device memory for weights.
        weights: what all components would take of it if everything unset were whole on the device.
        host_weights: bytes of the components that compute on the CPU.
        giving_way: names of the encoders that are streamed so that the rest fits.
        spread: over how many devices the diffusion model is split.
    """

    machine: MachineFacts
    mode: Mode
    video: bool
    room: Room
    weights: int
    host_weights: int
    giving_way: frozenset[str]
    spread: int

    @property
    def fits(self) -> bool:
        """Whether everything unset can be whole on the device at the same time."""
        return self.weights <= self.room.bytes

    @property
    def usable(self) -> int:
        """Device memory that other programs do not hold."""
        return max(0, self.machine.vram_total - self.machine.vram_others)


def situation(
    machine: MachineFacts,
    mode: Mode,
    components: Sequence[ComponentFacts],
    wishes: Mapping[str, Wish],
    total_budget: Budget | None,
    spent: int = 0,
) -> Situation:
    """Take the joint view.

    Args:
        machine: the machine.
        mode: what automatic choices aim for.
        components: all components to place.
        wishes: component name → what is asked for it.
        total_budget: the VRAM that all components together may hold, if somebody set one.
        spent: bytes of the room that earlier decisions have taken.
    """
    video = any(base_name(component.name) == "video_vae" for component in components)
    room = _room(machine, components, total_budget, video, spent)
    weights = sum(claim(c, wishes[c.name], machine) for c in components)
    unset = [c for c in components if wishes[c.name].placement is None and can_give_way(c)]
    return Situation(
        machine=machine,
        mode=mode,
        video=video,
        room=room,
        weights=weights,
        host_weights=sum(c.bytes for c in components if c.on_cpu or not machine.accelerator),
        giving_way=who_gives_way(unset, weights - room.bytes),
        spread=max((c.spread for c in components if group_of(c.name) == "dit"), default=1),
    )


def claim(component: ComponentFacts, wish: Wish, machine: MachineFacts) -> int:
    """Return the device memory that a component takes between its uses; whole, when nothing else is asked."""
    if component.on_cpu or not machine.accelerator or wish.placement in (Placement.CPU, Placement.OFFLOAD):
        return 0
    if wish.placement is Placement.LAYERWISE:
        if wish.budget is not None:
            return min(wish.budget.resolve(machine.vram_total), component.device_bytes)
        return component.window
    return component.device_bytes


def who_gives_way(candidates: Iterable[ComponentFacts], excess: int) -> frozenset[str]:
    """Choose the encoders to stream so that the weights shrink by `excess` bytes: as few bytes as possible.

    Text encoders go first, and image encoders only when those do not suffice. The smallest single encoder
    that suffices is taken; when none does, the largest, and then the same for the rest. All candidates are
    chosen when even that is not enough.
    """
    chosen: set[str] = set()
    candidates = sorted(candidates, key=_saving)
    for group in ("text_encoder", "image_encoder"):
        left = [c for c in candidates if group_of(c.name) == group]
        while left and excess > 0:
            one = next((c for c in left if _saving(c) >= excess), left[-1])
            left.remove(one)
            chosen.add(one.name)
            excess -= _saving(one)
    return frozenset(chosen)


def can_give_way(component: ComponentFacts) -> bool:
    """Tell whether streaming a component is possible, and runs each layer once per use."""
    streams = component.layers > 0 and component.can.gives_way and not component.loops
    return is_encoder(component.name) and streams and not component.on_cpu


def _saving(component: ComponentFacts) -> int:
    return component.device_bytes - component.window


def _room(
    machine: MachineFacts,
    components: Sequence[ComponentFacts],
    total_budget: Budget | None,
    video: bool,
    spent: int,
) -> Room:
    if not machine.accelerator:
        return Room(0, "no device memory", 0)
    known = max((c.activation_bytes for c in components if not c.on_cpu), default=0)
    guess = int(machine.vram_total * VIDEO_ACTIVATIONS) if video and not known else 0
    activations = max(machine.inference_reserve, known, guess)
    usable = max(0, machine.vram_total - machine.vram_others - activations)
    taken = [f"{format_bytes(activations)} for activations{_reserved(machine)}"] if activations else []
    if machine.vram_others:
        taken.append(f"{format_bytes(machine.vram_others)} that other programs hold")
    text = f"the card's {format_bytes(machine.vram_total)}"
    budgeted = total_budget is not None
    if total_budget is not None and total_budget.resolve(machine.vram_total) < usable:
        usable = total_budget.resolve(machine.vram_total)
        text, taken = f"the VRAM budget of {total_budget}", []
    if spent:
        taken.append(f"{format_bytes(min(spent, usable))} of an earlier loader")
    left = max(0, usable - spent)
    return Room(left, f"{format_bytes(left)} ({' less '.join([text, *taken])})", activations, budgeted)


def _reserved(machine: MachineFacts) -> str:
    names = ("--reserve-vram", *(("--vram-headroom",) if machine.dynamic_vram else ()))
    return "".join(f" and {flag}" for name in names if (flag := machine.flag(name)))
