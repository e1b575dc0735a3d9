"""Placement Policy: what a person asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from comfy_api.latest import io

from ..offload_runtime.policy import SETTINGS, WORKFLOW_SETTINGS, Policy, Scope, Setting, Source, SourceKind
from .checks import check
from .compat import known_options
from .prompt import links
from .sockets import CATEGORY, PlacementPolicy
from .widgets import setting_widget

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


_KEYS = tuple(setting.key for setting in WORKFLOW_SETTINGS)


def policy_of(node_id: str | None, values: Mapping[str, Any]) -> Policy:
    """Return what a node with these widget values asks for.

    Raises:
        PolicyError: a value cannot be understood.
    """
    return _policy(node_id, values, {})


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
            inputs=_inputs(),
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
        return check(Setting.TOTAL_BUDGET.row.kind, vram_budget, Setting.TOTAL_BUDGET.key)

    @classmethod
    def execute(cls, base: Policy | None = None, **values: Any) -> io.NodeOutput:
        """Chain this node's explicit values behind the base."""
        node_id = cls.hidden.unique_id
        via = links(cls.hidden.dynprompt, node_id, (*_KEYS, *SELECTORS))
        return io.NodeOutput((base or Policy()).extended(_policy(node_id, values, via)))


def _inputs() -> list[io.Input]:
    """Return the widgets in the order of the table, with one for each group where the placement stands."""
    inputs: list[io.Input] = []
    for row in SETTINGS:
        if row.setting is Setting.PLACEMENT:
            inputs += [
                setting_widget(row, name=name, tooltip=f"{_PLACES[name]} {_CHOICES}", group=group)
                for name, group in SELECTORS.items()
            ]
        elif row.scope is Scope.WORKFLOW:
            inputs.append(setting_widget(row))
    base = PlacementPolicy.Input(
        "base",
        optional=True,
        tooltip="A policy to start from. What this node sets wins over it; what this node leaves at "
        "auto keeps the base's value. A Set Placement in the base still wins over this node.",
    )
    return [*inputs, base]


def _policy(node_id: str | None, values: Mapping[str, Any], via: Mapping[str, str]) -> Policy:
    return Policy.from_widgets(
        Source(SourceKind.NODE, f"Placement Policy, node {node_id}"),
        placements={name: values.get(name) for name in SELECTORS},
        selectors=SELECTORS,
        via=via,
        **{key: values.get(key) for key in _KEYS},
    )
