"""Layerwise Offload Loader (Other Models): what a workflow loads beside MODEL, CLIP, VAE and CLIP_VISION."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from comfy_api.latest import io

from ..offload_runtime.policy import Policy
from ..offload_runtime.policy.files import DEFAULT_FILE
from . import sockets
from .compat import known_options
from .loader import place_connected
from .policy_files import fingerprint

if TYPE_CHECKING:
    from ..offload_runtime.adapter import Placements


class OtherModelsNode(io.ComfyNode):
    """Place ControlNets, model patches, upscalers and the like, which a policy asks for by name."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Every input is optional: connect what is to be placed."""
        return known_options(
            io.Schema,
            node_id="LayerwiseOffload_OtherModels",
            display_name="Layerwise Offload Loader (Other Models)",
            category=sockets.CATEGORY,
            description="Places whatever else a workflow loads: ControlNets, model patches, audio encoders, upscalers. "
            "Nothing of it is placed unless Set Placement or a policy file asks for it, by name or as other.",
            search_aliases=[
                "controlnet",
                "upscale model",
                "model patch",
                "audio encoder",
                "low vram",
                "offload",
            ],
            inputs=[
                *sockets.placed_inputs(sockets.OTHERS),
                *sockets.policy_inputs("Layerwise Offload Loader"),
            ],
            outputs=sockets.placed_outputs(sockets.OTHERS),
            hidden=[io.Hidden.unique_id, io.Hidden.dynprompt],
        )

    @classmethod
    def fingerprint_inputs(cls, **_: Any) -> str:
        """Place again when the user's default policy has changed."""
        return fingerprint(DEFAULT_FILE)

    @classmethod
    def execute(
        cls, policy: Policy | None = None, placements: Placements | None = None, **given: Any
    ) -> io.NodeOutput:
        """Clone, decide and attach."""
        connected = {socket: given.get(socket) for socket in sockets.OTHERS}
        return place_connected(cls.hidden, connected, policy, placements)
