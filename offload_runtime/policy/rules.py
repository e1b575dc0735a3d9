"""Automatic placement: small rules over frozen facts, the first match wins.

A rule returns a placement and the reason a person reads, or None when it has no opinion. `auto` as an answer
means that ComfyUI's own memory manager keeps the component, untouched by us.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from .components import Mode, Placement, group_of
from .facts import ComponentFacts, MachineFacts
from .quantities import format_bytes


class Verdict(NamedTuple):
    """What a rule decided, and why."""

    placement: Placement
    reason: str


Rule = Callable[[ComponentFacts, MachineFacts, Mode], Verdict | None]


def _manual(component: ComponentFacts, machine: MachineFacts, mode: Mode) -> Verdict | None:
    if mode is Mode.MANUAL:
        return Verdict(Placement.AUTO, "mode is manual, so what nobody set is left to ComfyUI")
    return None


def _by_name_only(component: ComponentFacts, machine: MachineFacts, mode: Mode) -> Verdict | None:
    if group_of(component.name) in (None, "dit"):
        return Verdict(Placement.AUTO, "placed only on request, so it is left to ComfyUI")
    return None


def _computes_on_cpu(component: ComponentFacts, machine: MachineFacts, mode: Mode) -> Verdict | None:
    if not component.on_cpu or (mode is Mode.MEMORY and _is_encoder(component)):
        return None
    return Verdict(
        Placement.RESIDENT, "ComfyUI computes it on the CPU, and the weights are in its memory already"
    )


def _vae(component: ComponentFacts, machine: MachineFacts, mode: Mode) -> Verdict | None:
    if group_of(component.name) == "vae":
        return Verdict(Placement.RESIDENT, "a VAE's transfers would sit on the visible decode path")
    return None


def _speed(component: ComponentFacts, machine: MachineFacts, mode: Mode) -> Verdict | None:
    if mode is Mode.SPEED:
        return Verdict(Placement.RESIDENT, "mode is speed")
    return None


def _memory(component: ComponentFacts, machine: MachineFacts, mode: Mode) -> Verdict | None:
    if mode is Mode.MEMORY and _is_encoder(component) and component.layers:
        return Verdict(
            Placement.LAYERWISE, f"mode is memory, and its {component.layers} layers run once per prompt"
        )
    return None


def _everything_fits(component: ComponentFacts, machine: MachineFacts, mode: Mode) -> Verdict | None:
    room = machine.vram_total - machine.inference_reserve
    if machine.accelerator and component.workflow_bytes <= room:
        sizes = f"{format_bytes(component.workflow_bytes)} of weights fit in {format_bytes(room)}"
        return Verdict(Placement.RESIDENT, f"all {sizes}, and what fits is never streamed")
    return None


def _encoder_gives_way(component: ComponentFacts, machine: MachineFacts, mode: Mode) -> Verdict | None:
    if machine.accelerator and _is_encoder(component) and component.layers:
        room = format_bytes(machine.vram_total - machine.inference_reserve)
        return Verdict(
            Placement.LAYERWISE,
            f"{format_bytes(component.workflow_bytes)} of weights do not fit in {room} together, "
            f"and an encoder runs its {component.layers} layers once per prompt",
        )
    return None


def _left_alone(component: ComponentFacts, machine: MachineFacts, mode: Mode) -> Verdict | None:
    return Verdict(Placement.AUTO, "no repeated layers were found, so it is left to ComfyUI")


RULES: tuple[Rule, ...] = (
    _manual,
    _by_name_only,
    _computes_on_cpu,
    _vae,
    _speed,
    _memory,
    _everything_fits,
    _encoder_gives_way,
    _left_alone,
)


def decide(component: ComponentFacts, machine: MachineFacts, mode: Mode) -> Verdict:
    """Return the verdict of the first rule that has an opinion; the last one always has."""
    return next(verdict for rule in RULES if (verdict := rule(component, machine, mode)) is not None)


def _is_encoder(component: ComponentFacts) -> bool:
    return group_of(component.name) in ("text_encoder", "image_encoder")
