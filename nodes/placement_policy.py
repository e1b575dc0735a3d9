"""Placement Policy: what a person asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from comfy_api.latest import io

from ..offload_runtime.policy import Mode, Placement, Policy, Setting, Source, SourceKind
from .checks import check, choices
from .compat import known_options
from .provenance import links
from .sockets import CATEGORY, PlacementPolicy

SELECTORS = {
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


def policy_of(node_id: str | None, values: Mapping[str, Any]) -> Policy:
    """Return what a node with these widget values asks for.

    Raises:
        PolicyError: a value cannot be understood.
    """
    places = tuple(values.get(name) for name in SELECTORS)
    return _policy(node_id, {}, values.get("mode"), places, values.get("vram_budget"), values.get("strict"))


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
            inputs=[*_inputs()],
            outputs=[
                PlacementPolicy.Output(
                    "policy", display_name="policy", tooltip="What you asked for, and where."
                )
            ],
            hidden=[io.Hidden.unique_id, io.Hidden.dynprompt],
            not_idempotent=True,  # the same values in another node have another source
        )

    @classmethod
    def validate_inputs(cls, vram_budget: str | None = None) -> bool | str:
        """Refuse a typo before anything runs."""
        return check(Setting.TOTAL_BUDGET, vram_budget, "vram_budget")

    @classmethod
    def execute(
        cls,
        mode: str | None = None,
        text_encoder: str | None = None,
        image_encoder: str | None = None,
        vae: str | None = None,
        diffusion_model: str | None = None,
        vram_budget: str | None = None,
        strict: str | None = None,
        base: Policy | None = None,
    ) -> io.NodeOutput:
        """Chain this node's explicit values behind the base."""
        node_id = cls.hidden.unique_id
        places = (text_encoder, image_encoder, vae, diffusion_model)
        via = links(cls.hidden.dynprompt, node_id, ("mode", *SELECTORS, "vram_budget", "strict"))
        policy = _policy(node_id, via, mode, places, vram_budget, strict)
        return io.NodeOutput((base or Policy()).extended(policy))


def _inputs() -> list[io.Input]:
    return [
        _choice(
            "mode",
            Setting.MODE,
            [mode.value for mode in Mode],
            "What automatic choices aim for. auto: what fits stays, what does not gives way. manual: nothing "
            "automatic. speed: everything stays on the device. memory: encoders run layer by layer.",
        ),
        *(
            _choice(
                name,
                Setting.PLACEMENT,
                [placement.value for placement in Placement],
                f"{place} {_CHOICES}",
            )
            for name, place in _PLACES.items()
        ),
        io.String.Input(
            "vram_budget",
            default="auto",
            optional=True,
            tooltip="VRAM that the weights of all placed components together may hold: auto, an amount such as "
            "6GB (1024³ bytes a GB), or a share of the card such as 50%. What layerwise components have left "
            "over their window keeps layers resident. Set Placement gives one component a budget of its own.",
        ),
        _choice(
            "strict",
            Setting.STRICT,
            ["auto", "on", "off"],
            "on: stop with a sentence when this machine cannot do all that you set. off, and auto: do as much of "
            "it as it can, and say in the report how far that is.",
        ),
        PlacementPolicy.Input(
            "base",
            optional=True,
            tooltip="A policy to start from. What this node sets wins over it; what this node leaves at "
            "auto keeps the base's value. A Set Placement in the base still wins over this node.",
        ),
    ]


def _choice(name: str, setting: Setting, offered: list[str], tooltip: str) -> io.Input:
    options = choices(setting, offered)
    return io.Combo.Input(name, options=options, default="auto", optional=True, tooltip=tooltip)


def _policy(
    node_id: str | None,
    via: dict[str, str],
    mode: str | None,
    places: tuple[str | None, ...],
    vram_budget: str | None,
    strict: str | None,
) -> Policy:
    return Policy.from_widgets(
        Source(SourceKind.NODE, f"Placement Policy, node {node_id}"),
        mode=mode,
        strict=strict,
        vram_budget=vram_budget,
        placements=dict(zip(SELECTORS, places, strict=True)),
        selectors=SELECTORS,
        via=via,
    )
