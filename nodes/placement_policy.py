"""Placement Policy: what a person asks for."""

from __future__ import annotations

from comfy_api.latest import io

from ..offload_runtime.errors import PolicyError
from ..offload_runtime.policy import Mode, Placement, Policy, Source, SourceKind
from .compat import known_options
from .sockets import CATEGORY, PlacementPolicy

_SELECTORS = {
    "text_encoder": "text_encoder",
    "image_encoder": "image_encoder",
    "vae": "vae",
    "diffusion_model": "dit",
}
"""Widget → the group that it places."""

_CHOICES = (
    "auto: decided for you, and the report says why. resident: whole on the device. layerwise: one layer at a "
    "time. offload: whole, and only while it is used. cpu: computed on the CPU."
)

_PLACES = {
    "text_encoder": "Where the text encoders (CLIP, T5, language models) live.",
    "image_encoder": "Where the image encoders (CLIP vision, SigLIP, DINO) live.",
    "vae": "Where image and video VAEs live. Audio VAEs are left to ComfyUI.",
    "diffusion_model": "Where the diffusion model lives. Left to ComfyUI unless you set it.",
}


class PlacementPolicyNode(io.ComfyNode):
    """Say where each model component lives while the workflow runs."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Every widget is optional and starts at `auto`: an absent key means the same as `auto`."""
        return known_options(
            io.Schema,
            node_id="LayerwiseOffload_PlacementPolicy",
            display_name="Placement Policy",
            category=CATEGORY,
            description="Says where each model component lives. What is left at auto is decided and explained; "
            "what you set is never overridden. Connect it to a Layerwise Offload Loader.",
            search_aliases=["low vram", "offload", "block swap", "layerwise", "vram budget", "memory"],
            inputs=[
                io.Combo.Input(
                    "mode",
                    options=[mode.value for mode in Mode],
                    default=Mode.AUTO.value,
                    optional=True,
                    tooltip="What automatic choices aim for. auto: what fits stays, what does not gives way. "
                    "manual: nothing automatic. speed: everything stays on the device. memory: encoders run "
                    "layer by layer.",
                ),
                *(
                    io.Combo.Input(
                        name,
                        options=[placement.value for placement in Placement],
                        default=Placement.AUTO.value,
                        optional=True,
                        tooltip=f"{place} {_CHOICES}",
                    )
                    for name, place in _PLACES.items()
                ),
                io.String.Input(
                    "vram_budget",
                    default="auto",
                    optional=True,
                    tooltip="VRAM that each layerwise component may hold: auto, an amount such as 6GB (1024³ "
                    "bytes a GB), or a share of the card such as 50%. What is left over the one slot keeps "
                    "weights resident.",
                ),
                PlacementPolicy.Input(
                    "base",
                    optional=True,
                    tooltip="A policy to start from. What this node sets wins over it; what this node leaves at "
                    "auto keeps the base's value.",
                ),
            ],
            outputs=[
                PlacementPolicy.Output(
                    "policy", display_name="policy", tooltip="What you asked for, and where."
                )
            ],
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    def validate_inputs(
        cls,
        mode: str | None = None,
        text_encoder: str | None = None,
        image_encoder: str | None = None,
        vae: str | None = None,
        diffusion_model: str | None = None,
        vram_budget: str | None = None,
    ) -> bool | str:
        """Refuse a typo before anything runs, with the nearest valid words."""
        try:
            _policy("", mode, text_encoder, image_encoder, vae, diffusion_model, vram_budget)
        except PolicyError as error:
            return str(error)
        return True

    @classmethod
    def execute(
        cls,
        mode: str | None = None,
        text_encoder: str | None = None,
        image_encoder: str | None = None,
        vae: str | None = None,
        diffusion_model: str | None = None,
        vram_budget: str | None = None,
        base: Policy | None = None,
    ) -> io.NodeOutput:
        """Chain this node's explicit values behind the base."""
        node_id = cls.hidden.unique_id
        policy = _policy(node_id, mode, text_encoder, image_encoder, vae, diffusion_model, vram_budget)
        return io.NodeOutput((base or Policy()).extended(policy))


def _policy(node_id: str, mode: str | None, *values: str | None) -> Policy:
    *places, vram_budget = values
    return Policy.from_widgets(
        Source(SourceKind.NODE, f"Placement Policy, node {node_id}"),
        mode=mode,
        vram_budget=vram_budget,
        placements=dict(zip(_SELECTORS.values(), places, strict=True)),
    )
