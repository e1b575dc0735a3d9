"""Set Placement: one more wish, for one component or group, above everything that came before it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from comfy_api.latest import io

from ..offload_runtime.policy import (
    COMPONENTS,
    SELECTORS,
    HostTier,
    Placement,
    Policy,
    Setting,
    Source,
    SourceKind,
)
from .checks import OpenList, check, choices
from .compat import known_options
from .provenance import links
from .sockets import CATEGORY, PlacementPolicy

_VALUES = ("component", "placement", "vram_budget", "host", "device")


def policy_of(node_id: str | None, values: Mapping[str, Any]) -> Policy:
    """Return what a node with these widget values asks for.

    Raises:
        PolicyError: a value cannot be understood.
    """
    return _policy(node_id, {}, *(values.get(name) for name in _VALUES))


class SetPlacementNode(io.ComfyNode):
    """Override the placement of one component; bypass the node to take the wish back."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Every widget is optional and starts at `auto`, which sets nothing."""
        return known_options(
            io.Schema,
            node_id="LayerwiseOffload_SetPlacement",
            display_name="Set Placement",
            category=CATEGORY,
            description="Sets the placement of one component or group, over files and Placement Policy nodes. Chain "
            "several: the last one wins. A bypassed one sets nothing.",
            search_aliases=[
                "override placement",
                "offload",
                "layerwise",
                "vram",
                "text encoder 2",
                "host tier",
            ],
            inputs=_inputs(),
            outputs=[
                PlacementPolicy.Output(
                    "policy", display_name="policy", tooltip="The base, with this wish above it."
                )
            ],
            hidden=[io.Hidden.unique_id, io.Hidden.dynprompt],
            not_idempotent=True,  # the same values in another node have another source
        )

    @classmethod
    def validate_inputs(cls, vram_budget: str | None = None) -> bool | str:
        """Refuse a typo before anything runs."""
        return check(Setting.BUDGET, vram_budget, "vram_budget")

    @classmethod
    def execute(
        cls,
        component: str | None = None,
        placement: str | None = None,
        vram_budget: str | None = None,
        host: str | None = None,
        device: str | None = None,
        base: Policy | None = None,
    ) -> io.NodeOutput:
        """Chain this wish behind the base."""
        node_id = cls.hidden.unique_id
        via = links(cls.hidden.dynprompt, node_id, _VALUES)
        policy = _policy(node_id, via, component, placement, vram_budget, host, device)
        return io.NodeOutput((base or Policy()).extended(policy))


def _inputs() -> list[io.Input]:
    return [
        io.Combo.Input(
            "component",
            options=OpenList(["auto", *SELECTORS, *(f"{name}_2" for name in COMPONENTS), "text_encoder_3"]),
            default="auto",
            optional=True,
            tooltip="What the wish is for: a component, a group (dit, text_encoder, image_encoder, vae), default "
            "(encoders and VAEs) or all. Through the API, or linked, it may be any name such as text_encoder_4, or a "
            "comma list. auto: nothing.",
        ),
        io.Combo.Input(
            "placement",
            options=choices(Setting.PLACEMENT, (placement.value for placement in Placement)),
            default=Placement.AUTO.value,
            optional=True,
            tooltip="Where it lives. auto: not set here. resident: whole on the device. layerwise: one layer at a "
            "time. offload: whole, and only while it is used. cpu: computed on the CPU.",
        ),
        io.String.Input(
            "vram_budget",
            default="auto",
            optional=True,
            tooltip="VRAM that each component named above may hold: auto (not set here), an amount such as 2GB "
            "(1024³ bytes a GB), or a share of the card such as 20%.",
        ),
        io.Combo.Input(
            "host",
            options=choices(Setting.HOST, (tier.value for tier in HostTier)),
            default=HostTier.AUTO.value,
            optional=True,
            tooltip="Where the weights of its layers wait. auto: not set here. pinned: page-locked memory, fastest. "
            "staged: ordinary memory, copied by a thread of its own. mapped: the model file, least memory.",
        ),
        io.String.Input(
            "device",
            default="auto",
            optional=True,
            tooltip="The accelerator that computes it: auto (ComfyUI's own), or its number, as in gpu:1. Where a "
            "machine cannot do that, the report says so.",
        ),
        PlacementPolicy.Input(
            "base",
            optional=True,
            tooltip="The policy to override. Without one, this wish is all that is asked.",
        ),
    ]


def _policy(
    node_id: str | None,
    via: dict[str, str],
    component: str | None,
    placement: str | None,
    vram_budget: str | None,
    host: str | None,
    device: str | None,
) -> Policy:
    return Policy.for_component(
        Source(SourceKind.OVERRIDE, f"Set Placement, node {node_id}"),
        component,
        placement=placement,
        vram_budget=vram_budget,
        host=host,
        device=device,
        via=via,
    )
