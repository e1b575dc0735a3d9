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

from .beside import ALONE, Beside, Claim, beside_text, joint_bytes
from .components import Mode, Placement, base_name, group_of, is_encoder
from .facts import ComponentFacts, MachineFacts
from .quantities import Budget, format_bytes

VIDEO_ACTIVATIONS = 0.25
"""Share of the card kept for the activations of a video workflow until they are known."""

HOST_SHARE = 0.9
"""Share of host memory that weights may take before they are read from their file instead."""


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
        weights: what everything would take of it if everything unset were whole on the device.
        weights_text: the same for people: what the components take, and what is beside them.
        all_weights: what it would take if all diffusion models that run in turn were there at the same time.
        host_weights: bytes of everything that computes on the CPU.
        giving_way: names of the encoders that are streamed so that the rest fits. One that fits beside one of the
            diffusion models that run in turn does not stay, either, when another one needs its room at every prompt.
        from_file: names of the components that the CPU reads from their file so that the rest fits in its memory.
        spread: over how many devices the diffusion model is split.
        beside: what else needs room on the device.
    """

    machine: MachineFacts
    mode: Mode
    video: bool
    room: Room
    weights: int
    weights_text: str
    all_weights: int
    host_weights: int
    giving_way: frozenset[str]
    from_file: frozenset[str]
    spread: int
    beside: tuple[Claim, ...] = ()

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
    beside: Beside = ALONE,
) -> Situation:
    """Take the joint view.

    Args:
        machine: the machine.
        mode: what automatic choices aim for.
        components: all components to place.
        wishes: component name → what is asked for it.
        total_budget: the VRAM that all components together may hold, if somebody set one.
        beside: what else the workflow uses.
    """
    video = beside.video or any(base_name(component.name) == "video_vae" for component in components)
    budgeted = total_budget is not None
    spent, others = beside.spent(budgeted=budgeted), beside.claims(machine, budgeted=budgeted)
    room = _room(machine, (*components, *beside.components), total_budget, video, spent)
    own = [(claim(c, wishes[c.name], machine), c.takes_turns and not budgeted) for c in components]
    parts = [*own, *((other.bytes, other.in_turn) for other in others)]
    weights, all_weights = joint_bytes(parts), sum(size for size, _ in parts)
    turns = sum(in_turn for _, in_turn in own) + sum(other.in_turn for other in others)
    unset = [c for c in components if wishes[c.name].placement is None]
    on_host = [c for c in components if c.on_cpu or not machine.accelerator]
    host_weights = sum(c.bytes for c in on_host) + beside.host_bytes(machine)
    return Situation(
        machine=machine,
        mode=mode,
        video=video,
        room=room,
        weights=weights,
        weights_text=f"{format_bytes(joint_bytes(own))} of weights{beside_text(others, turns)}",
        all_weights=all_weights,
        host_weights=host_weights,
        giving_way=who_gives_way(filter(can_give_way, unset), all_weights - room.bytes),
        from_file=_who_stays_in_its_file(components, wishes, on_host, host_weights - host_room(machine)),
        spread=max((c.spread for c in components if group_of(c.name) == "dit"), default=1),
        beside=others,
    )


def host_room(machine: MachineFacts) -> int:
    """Return how much of the host's memory weights may take before they are read from their file instead."""
    return int(machine.ram_total * HOST_SHARE)


def _who_stays_in_its_file(
    components: Sequence[ComponentFacts],
    wishes: Mapping[str, Wish],
    on_host: Sequence[ComponentFacts],
    excess: int,
) -> frozenset[str]:
    """Choose what the CPU reads from its file so that the rest fits in memory: the largest first, encoders before all.

    What somebody wants streamed anyway is counted first.
    """
    able = [c for c in on_host if c.layers and c.file_bytes != 0]
    excess -= sum(c.layer_bytes for c in able if wishes[c.name].placement is Placement.LAYERWISE)
    unset = [c for c in able if wishes[c.name].placement is None and group_of(c.name) not in (None, "dit")]
    chosen = set()
    for one in sorted(unset, key=lambda c: (not is_encoder(c.name), -c.bytes, c.name)):
        if excess > 0:
            chosen.add(one.name)
            excess -= one.layer_bytes
    return frozenset(chosen)


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
    usable = max(0, machine.vram_total - machine.vram_others - activations - machine.margin)
    asked = ", as ComfyUI asked for in the last uses" if activations == known else _reserved(machine)
    taken = [f"{format_bytes(activations)} for activations{asked}"] if activations else []
    if machine.margin:
        taken.append(f"{format_bytes(machine.margin)} more after it ran out of memory in {machine.ran_out}")
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
