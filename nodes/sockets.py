"""The pack's socket types, declared once."""

from __future__ import annotations

from collections.abc import Iterable

from comfy_api.latest import io

from ..offload_runtime.policy.sockets import OTHERS
from ..offload_runtime.policy.sockets import SOCKETS as PLACED

PlacementPolicy = io.Custom("LAYERWISE_POLICY")
Placements = io.Custom("LAYERWISE_PLACEMENTS")
PlacementReport = io.Custom("LAYERWISE_REPORT")

CATEGORY = "advanced/offload"

SOCKETS = tuple(PLACED)
"""The sockets of the loader for what is placed, in order."""

TYPES = {
    "model": io.Model,
    "clip": io.Clip,
    "vae": io.Vae,
    "clip_vision": io.ClipVision,
    **{socket: io.Custom(kind) for socket, kind in OTHERS.items()},
}
"""Socket → its type."""


def placed_inputs(sockets: Iterable[str]) -> list[io.Input]:
    """Return the inputs of a node for what it places."""
    return [
        TYPES[socket].Input(socket, optional=True, tooltip=f"The {socket.upper()} to place; may stay open.")
        for socket in sockets
    ]


def policy_inputs(other: str) -> tuple[io.Input, io.Input]:
    """Return the inputs by which a node that places hears what is wanted, and what others have placed.

    Args:
        other: what such another one is called.
    """
    return (
        PlacementPolicy.Input(
            "policy",
            optional=True,
            tooltip="Where the components shall live. Without a policy everything is decided automatically.",
        ),
        Placements.Input(
            "placements",
            optional=True,
            tooltip=f"The placements of another {other}: this one's are added, so that one report shows them all, "
            "and a second text encoder is called text_encoder_2.",
        ),
    )


def placed_outputs(sockets: Iterable[str]) -> list[io.Output]:
    """Return the outputs of a node that places what some sockets take, in order."""
    return [
        *(
            TYPES[slot].Output(display_name=slot.upper(), tooltip=f"The placed {slot.upper()}.")
            for slot in sockets
        ),
        Placements.Output(
            display_name="placements",
            tooltip="What was placed, for a Placement Report or another loader.",
        ),
    ]
