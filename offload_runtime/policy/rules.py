"""Automatic placement: small rules over frozen facts, the first match wins.

A rule returns a placement and the reason a person reads, with the numbers in it, or None when it has no
opinion. `auto` as an answer means that ComfyUI's own memory manager keeps the component, untouched by us.
The decisions come from SGLang-Diffusion's auto-tuner (memory modes, memory-rich tier, keep-resident thresholds,
spread diffusion model); its thresholds on free memory give way to a joint solve over real sizes (`situation.py`)
wherever the sizes decide. Its table of families has no counterpart: `docs/diffusion_models.md` has the measurements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from .components import Mode, Placement, group_of, is_encoder
from .facts import ComponentFacts
from .quantities import format_bytes
from .situation import HOST_SHARE, Situation

GB = 1024**3
KEEP_RESIDENT_IMAGE = 45 * GB
KEEP_RESIDENT_VIDEO = 120 * GB
"""Device memory from which a VAE is not streamed even to save memory: video activations need far more."""

MEMORY_RICH = 2
"""Device memory of this many times all weights is ample."""


class Verdict(NamedTuple):
    """What a rule decided, and why."""

    placement: Placement
    reason: str


Rule = Callable[[ComponentFacts, Situation], Verdict | None]


def _manual(component: ComponentFacts, now: Situation) -> Verdict | None:
    if now.mode is Mode.MANUAL:
        return Verdict(Placement.AUTO, "mode is manual, so what nobody set is left to ComfyUI")
    return None


def _by_name_only(component: ComponentFacts, now: Situation) -> Verdict | None:
    if group_of(component.name) not in (None, "dit", "other"):
        return None
    if now.spread > 1:
        return Verdict(Placement.AUTO, f"it is spread over {now.spread} devices, where it stays")
    return Verdict(Placement.AUTO, "placed only on request, so it is left to ComfyUI")


def _larger_than_host_memory(component: ComponentFacts, now: Situation) -> Verdict | None:
    if component.name not in now.from_file:
        return None
    return Verdict(
        Placement.LAYERWISE,
        f"{format_bytes(now.host_weights)} of weights on the CPU are more than {HOST_SHARE:.0%} of "
        f"{format_bytes(now.machine.ram_total)} of memory, so layers are read from the file when they run",
    )


def _computes_on_cpu(component: ComponentFacts, now: Situation) -> Verdict | None:
    if not _on_cpu(component, now) or (now.mode is Mode.MEMORY and _streams_once(component)):
        return None
    reason = "ComfyUI computes it on the CPU, and the weights are in its memory already"
    return Verdict(Placement.CPU if now.machine.accelerator else Placement.RESIDENT, reason)


def _shared_memory(component: ComponentFacts, now: Situation) -> Verdict | None:
    if now.machine.shared_memory and not _on_cpu(component, now):
        reason = f"{now.machine.device} shares its memory with the CPU, so moving weights frees none"
        return Verdict(Placement.RESIDENT, reason)
    return None


def _speed(component: ComponentFacts, now: Situation) -> Verdict | None:
    # What does not fit comes and goes whole with every prompt, which streaming an encoder beats.
    goes = component.name in now.giving_way or (is_encoder(component.name) and not now.fits)
    if now.mode is not Mode.SPEED or goes:
        return None
    if _oversized_vae(component, now) is not None:
        return None
    return Verdict(Placement.RESIDENT, "mode is speed")


def _diffusion_model_is_spread(component: ComponentFacts, now: Situation) -> Verdict | None:
    if now.spread < 2 or not _streams_once(component):
        return None
    if now.mode is Mode.MEMORY or not now.fits:
        return Verdict(
            Placement.LAYERWISE,
            f"the diffusion model is spread over {now.spread} devices and stays there, so its "
            f"{component.layers} layers make room beside it",
        )
    return None


def _memory_rich(component: ComponentFacts, now: Situation) -> Verdict | None:
    ample = now.usable >= MEMORY_RICH * now.weights
    if now.mode is Mode.AUTO and now.fits and ample and component.name not in now.giving_way:
        return Verdict(
            Placement.RESIDENT,
            f"{format_bytes(now.usable)} of VRAM are at least twice all {now.weights_text}",
        )
    return None


def _memory_mode_encoder(component: ComponentFacts, now: Situation) -> Verdict | None:
    if now.mode is Mode.MEMORY and is_encoder(component.name) and _streams_once(component):
        return Verdict(
            Placement.LAYERWISE, f"mode is memory, and its {component.layers} layers run once per prompt"
        )
    return None


def _memory_mode_vae(component: ComponentFacts, now: Situation) -> Verdict | None:
    ample = KEEP_RESIDENT_VIDEO if now.video else KEEP_RESIDENT_IMAGE
    if now.mode is not Mode.MEMORY or group_of(component.name) != "vae":
        return None
    if not _streams_once(component) or now.usable >= ample:
        return None
    return Verdict(
        Placement.LAYERWISE,
        f"mode is memory, {format_bytes(now.usable)} of VRAM are less than {format_bytes(ample)}, and its "
        f"{component.layers} layers run once per use",
    )


def _oversized_vae(component: ComponentFacts, now: Situation) -> Verdict | None:
    if (
        group_of(component.name) != "vae"
        or component.device_bytes <= now.room.bytes
        or _on_cpu(component, now)
    ):
        return None
    size = f"its {format_bytes(component.device_bytes)} alone do not fit in {now.room.text}"
    if _streams_once(component):
        return Verdict(Placement.LAYERWISE, f"{size}, and its layers run once per use")
    return None


def _vae(component: ComponentFacts, now: Situation) -> Verdict | None:
    if group_of(component.name) == "vae":
        return Verdict(Placement.RESIDENT, "a VAE's transfers would sit on the visible decode path")
    return None


def _everything_fits(component: ComponentFacts, now: Situation) -> Verdict | None:
    if now.mode is Mode.AUTO and now.fits and component.name not in now.giving_way:
        return Verdict(
            Placement.RESIDENT,
            f"all {now.weights_text} fit in {now.room.text}, and what fits is never streamed",
        )
    return None


def _encoder_gives_way(component: ComponentFacts, now: Situation) -> Verdict | None:
    if component.name in now.giving_way and now.fits:
        return Verdict(
            Placement.LAYERWISE,
            f"{now.weights_text} fit in {now.room.text}, but the {format_bytes(now.all_weights)} with all diffusion "
            f"models that run in turn do not, and an encoder runs its {component.layers} layers once per prompt",
        )
    if component.name in now.giving_way:
        return Verdict(
            Placement.LAYERWISE,
            f"{now.weights_text} do not fit in {now.room.text} together, and an encoder "
            f"runs its {component.layers} layers once per prompt",
        )
    return None


def _looping_encoder(component: ComponentFacts, now: Situation) -> Verdict | None:
    if not component.loops or not component.layers:
        return None
    loops = f"it ran its layers {component.passes} times in its last use"
    if component.device_bytes <= now.room.bytes:
        return Verdict(
            Placement.OFFLOAD, f"{loops}, so it is on the device whole while it is used, and only then"
        )
    return Verdict(Placement.LAYERWISE, f"{loops}, but its {format_bytes(component.device_bytes)} do not fit")


def _encoder_may_stay(component: ComponentFacts, now: Situation) -> Verdict | None:
    if now.giving_way and component.layers:
        others = " and ".join(sorted(now.giving_way))
        return Verdict(Placement.RESIDENT, f"{others} giving way makes room enough in {now.room.text}")
    return None


def _left_alone(component: ComponentFacts, now: Situation) -> Verdict | None:
    why = component.why_no_layers if not component.layers else "nothing can give way for it"
    return Verdict(Placement.AUTO, f"{why}, so it is left to ComfyUI")


RULES: tuple[Rule, ...] = (
    _manual,
    _by_name_only,
    _larger_than_host_memory,
    _computes_on_cpu,
    _shared_memory,
    _speed,
    _diffusion_model_is_spread,
    _memory_rich,
    _memory_mode_encoder,
    _memory_mode_vae,
    _oversized_vae,
    _vae,
    _everything_fits,
    _encoder_gives_way,
    _looping_encoder,
    _encoder_may_stay,
    _left_alone,
)


def decide(component: ComponentFacts, now: Situation) -> Verdict:
    """Return the verdict of the first rule that has an opinion; the last one always has."""
    return next(verdict for rule in RULES if (verdict := rule(component, now)) is not None)


def _on_cpu(component: ComponentFacts, now: Situation) -> bool:
    return component.on_cpu or not now.machine.accelerator


def _streams_once(component: ComponentFacts) -> bool:
    return component.layers > 0 and component.can.gives_way and not component.loops
