"""What the machine makes impossible, whoever asks: small functions from a placement to the nearest possible one.

Each returns a `Bound` with the placement that remains and a sentence that names the cause (a flag by its
name), or None when it has nothing against the placement. They are applied in order, so that one may bound
what another has left. A bound may leave the placement as it is and only say what it comes to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from .components import Placement, group_of
from .facts import ComponentFacts, MachineFacts


class Bound(NamedTuple):
    """What remains of a placement, and why."""

    placement: Placement
    reason: str


Check = Callable[[Placement, ComponentFacts, MachineFacts], Bound | None]


def _no_accelerator(placement: Placement, component: ComponentFacts, machine: MachineFacts) -> Bound | None:
    if machine.accelerator or placement is not Placement.OFFLOAD:
        return None
    cause = machine.flag("--cpu") or "a machine without an accelerator"
    return Bound(Placement.RESIDENT, f"{cause} leaves only the CPU, so it stays in the memory that computes")


def _computes_on_cpu(placement: Placement, component: ComponentFacts, machine: MachineFacts) -> Bound | None:
    if not machine.accelerator or not component.on_cpu or placement is Placement.CPU:
        return None
    cause = _cpu_cause(component, machine)
    if placement is Placement.LAYERWISE:
        return Bound(
            Placement.LAYERWISE, f"{cause} computes it on the CPU, so its layers stream from the file"
        )
    if placement in (Placement.RESIDENT, Placement.OFFLOAD):
        return Bound(Placement.CPU, f"{cause} computes it on the CPU")
    return None


def _gpu_only(placement: Placement, component: ComponentFacts, machine: MachineFacts) -> Bound | None:
    flag = machine.flag("--gpu-only")
    if (
        flag is None
        or not _on_device(component, machine)
        or placement in (Placement.AUTO, Placement.RESIDENT)
    ):
        return None
    return Bound(Placement.RESIDENT, f"{flag} keeps every weight on the device")


def _highvram(placement: Placement, component: ComponentFacts, machine: MachineFacts) -> Bound | None:
    flag = machine.flag("--highvram")
    if flag is None or placement is not Placement.OFFLOAD or group_of(component.name) != "dit":
        return None
    return Bound(Placement.RESIDENT, f"{flag} leaves a diffusion model on the device after its use")


def _beyond_its_backend(
    placement: Placement, component: ComponentFacts, machine: MachineFacts
) -> Bound | None:
    unmet = component.can.why_not(placement)
    return Bound(unmet.nearest, unmet.reason) if unmet is not None else None


def _no_file(placement: Placement, component: ComponentFacts, machine: MachineFacts) -> Bound | None:
    on_device = _on_device(component, machine)
    if placement is not Placement.LAYERWISE or on_device or component.file_bytes != 0:
        return None
    nearest = Placement.CPU if machine.accelerator else Placement.RESIDENT
    return Bound(
        nearest, f"{component.why_no_file}, so layer by layer nothing would be gained, and it stays in memory"
    )


def _novram(placement: Placement, component: ComponentFacts, machine: MachineFacts) -> Bound | None:
    flag = machine.flag("--novram")
    if flag is None or not _on_device(component, machine) or placement is not Placement.RESIDENT:
        return None
    streams = (
        component.layers and not component.can.why_not(Placement.LAYERWISE) and not machine.shared_memory
    )
    nearest = Placement.LAYERWISE if streams else Placement.AUTO
    return Bound(nearest, f"{flag} lets no weights stay on the device")


def _no_smart_memory(placement: Placement, component: ComponentFacts, machine: MachineFacts) -> Bound | None:
    flag = machine.flag("--disable-smart-memory")
    if flag is None or not _on_device(component, machine) or placement is not Placement.RESIDENT:
        return None
    if machine.flag("--gpu-only") or machine.flag("--highvram"):
        return None
    return Bound(Placement.OFFLOAD, f"{flag} unloads every model when the next one loads")


def _no_layers(placement: Placement, component: ComponentFacts, machine: MachineFacts) -> Bound | None:
    if component.layers or placement is not Placement.LAYERWISE:
        return None
    return Bound(Placement.AUTO, f"{component.why_no_layers}, so it is left to ComfyUI")


def _no_mapping(placement: Placement, component: ComponentFacts, machine: MachineFacts) -> Bound | None:
    flag = machine.flag("--disable-mmap")
    if flag is None or _on_device(component, machine) or placement is not Placement.LAYERWISE:
        return None
    left = Placement.CPU if machine.accelerator else Placement.RESIDENT
    return Bound(left, f"{flag} lets no layers be read from the file, so all of it stays in memory")


def _moving_is_in_vain(
    placement: Placement, component: ComponentFacts, machine: MachineFacts
) -> Bound | None:
    if not _on_device(component, machine) or placement not in (Placement.LAYERWISE, Placement.OFFLOAD):
        return None
    if machine.shared_memory:
        moving = "streaming" if placement is Placement.LAYERWISE else "offloading"
        return Bound(
            Placement.RESIDENT, f"{machine.device} shares its memory with the CPU: {moving} frees none"
        )
    return None


_CHECKS: tuple[Check, ...] = (
    _beyond_its_backend,
    _no_accelerator,
    _computes_on_cpu,
    _gpu_only,
    _no_layers,
    _no_mapping,
    _no_file,
    _moving_is_in_vain,
    _novram,
    _no_smart_memory,
    _highvram,
    _beyond_its_backend,
)
"""In an order in which what one leaves is never undone by an earlier one, so that bounding twice changes nothing."""


def bound(
    placement: Placement, component: ComponentFacts, machine: MachineFacts
) -> tuple[Placement, tuple[str, ...]]:
    """Return what remains possible of a placement, and the sentences that say why, in order."""
    reasons = []
    for check in _CHECKS:
        found = check(placement, component, machine)
        if found is not None:
            placement, reason = found
            reasons.append(reason)
    return placement, tuple(reasons)


def _on_device(component: ComponentFacts, machine: MachineFacts) -> bool:
    return machine.accelerator and not component.on_cpu


def _cpu_cause(component: ComponentFacts, machine: MachineFacts) -> str:
    encoders = ("--lowvram", "--novram")
    flags = {"vae": ("--cpu-vae",), "text_encoder": encoders, "image_encoder": encoders}
    for name in flags.get(group_of(component.name) or "", ()):
        typed = machine.flag(name)
        if typed is not None:
            return typed
    return "ComfyUI"
