"""Host memory in bytes, by its kind: what a plan expects of a component, and what is read from the live model.

The plan counts what is on the host while everything is as it was placed: what stays on the device takes nothing
here, and only what is streamed is pinned. Evicted, a weight is back in ordinary memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from .components import HostTier, Placement
from .facts import ComponentFacts, MachineFacts
from .quantities import format_bytes


@dataclass(frozen=True)
class HostBytes:
    """Weights on the host, in bytes.

    Attributes:
        mapped: read from the model file when they are used; they take page cache only.
        pinned: in page-locked memory.
        pageable: in ordinary memory.
    """

    mapped: int = 0
    pinned: int = 0
    pageable: int = 0

    def __str__(self) -> str:
        kinds = {"mapped": self.mapped, "pinned": self.pinned, "pageable": self.pageable}
        return " · ".join(f"{format_bytes(size)} {kind}" for kind, size in kinds.items() if size) or "none"


def planned_on_host(
    component: ComponentFacts,
    placement: Placement,
    tier: HostTier | None,
    device_bytes: int,
    machine: MachineFacts,
) -> HostBytes | None:
    """Return where the weights of a component wait between its uses, or None where ComfyUI chooses as it goes.

    Args:
        component: the component.
        placement: what was resolved for it.
        tier: where the masters of its layers wait, or None when it is not streamed.
        device_bytes: the device memory that the plan counts for it.
        machine: the machine.
    """
    if placement is Placement.CPU or component.on_cpu or not machine.accelerator:
        mapped = _in_file(component, component.layer_bytes) if placement is Placement.LAYERWISE else 0
        return HostBytes(mapped=mapped, pageable=component.bytes - mapped)
    if component.can.keeper:
        return None
    if placement is Placement.OFFLOAD:
        return HostBytes(pageable=component.bytes)
    if device_bytes >= component.device_bytes:
        return HostBytes()
    if placement is Placement.LAYERWISE:
        return _streamed(component, tier, device_bytes, machine)
    rest = max(0, component.bytes - component.spread * device_bytes)
    return HostBytes(pinned=rest) if _pins(machine) else HostBytes(pageable=rest)


def _streamed(
    component: ComponentFacts, tier: HostTier | None, device_bytes: int, machine: MachineFacts
) -> HostBytes:
    """Of what does not stay, layers are the last to be on the host; the rest of it is ComfyUI's to copy."""
    stays = component.loose_bytes + max(0, device_bytes - component.window)
    left = max(0, component.bytes - component.table_bytes - stays)
    layers = min(component.layer_bytes, left)
    pinned = layers if tier is HostTier.PINNED else 0
    mapped = in_layers = 0
    if tier is HostTier.MAPPED:
        mapped, in_layers = _in_file(component, layers), min(component.file_bytes or 0, layers)
    tables = min(component.table_bytes, mapped - in_layers)
    beside = max(0, left - layers - (mapped - in_layers - tables))
    waits = component.table_bytes - tables + layers - pinned - in_layers
    if _pins(machine):
        return HostBytes(mapped, pinned + beside, waits)
    return HostBytes(mapped, pinned, waits + beside)


def _pins(machine: MachineFacts) -> bool:
    """Tell whether ComfyUI pins what it copies to the device for each use."""
    return machine.flag("--disable-pinned-memory") is None and machine.pin_limit != 0


def _in_file(component: ComponentFacts, layers: int) -> int:
    """Return how much rests in the file when so much of the layers would."""
    in_file = min(component.file_bytes or 0, layers)
    return in_file + component.file_beside_bytes if in_file else 0
