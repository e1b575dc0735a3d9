"""What could stay on the device, from memory that was free at the peak of a run.

The order of the suggestions is SGLang-Diffusion's: a VAE first, whose transfers sit on the decode path, the
diffusion model last. The sizes are the real sizes of the weights, less what the peak already holds of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .components import Placement, group_of
from .decision import Decision
from .facts import ComponentFacts

_ORDER = ("vae", "image_encoder", "text_encoder", "other", None, "dit")


def could_stay_resident(
    decisions: Iterable[Decision], components: Iterable[ComponentFacts], headroom: int
) -> tuple[str, ...]:
    """Name the components that could be resident at once in the memory that a run left free.

    Args:
        decisions: what was resolved for the components.
        components: their facts.
        headroom: device memory that was still free at the peak, in bytes.

    Returns:
        Component names, the best suggestion first. A component that was asked for explicitly is not named.
    """
    facts: Mapping[str, ComponentFacts] = {c.name: c for c in components}
    moved = [
        d
        for d in decisions
        if d.placement in (Placement.LAYERWISE, Placement.OFFLOAD) and d.asked is None and d.device != "cpu"
    ]
    chosen = []
    for decision in sorted(moved, key=lambda d: (_ORDER.index(group_of(d.component)), d.component)):
        more = facts[decision.component].device_bytes - decision.held_bytes
        if more <= headroom:
            headroom -= more
            chosen.append(decision.component)
    return tuple(chosen)
