"""Set Placement: one more wish, for one component or group, above everything that came before it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from comfy_api.latest import io

from ..offload_runtime.policy import (
    COMPONENT_SETTINGS,
    COMPONENTS,
    SELECTORS,
    SETTINGS,
    UNSET,
    Policy,
    Scope,
    Setting,
    Source,
    SourceKind,
)
from .checks import OpenList, check
from .compat import known_options
from .prompt import links
from .sockets import CATEGORY, PlacementPolicy
from .widgets import setting_widget

_COMPONENT = "component"
_KEYS = tuple(setting.key for setting in COMPONENT_SETTINGS)


def policy_of(node_id: str | None, values: Mapping[str, Any]) -> Policy:
    """Return what a node with these widget values asks for.

    Raises:
        PolicyError: a value cannot be understood.
    """
    return _policy(node_id, values, {})


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
        return check(Setting.BUDGET.row.kind, vram_budget, Setting.BUDGET.key)

    @classmethod
    def execute(cls, base: Policy | None = None, **values: Any) -> io.NodeOutput:
        """Chain this wish behind the base."""
        node_id = cls.hidden.unique_id
        via = links(cls.hidden.dynprompt, node_id, (_COMPONENT, *_KEYS))
        return io.NodeOutput((base or Policy()).extended(_policy(node_id, values, via)))


def _inputs() -> list[io.Input]:
    component = io.Combo.Input(
        _COMPONENT,
        options=OpenList([UNSET, *SELECTORS, *(f"{name}_2" for name in COMPONENTS), "text_encoder_3"]),
        default=UNSET,
        optional=True,
        tooltip="What the wish is for: a component, a group (dit, text_encoder, image_encoder, vae, other), default "
        "(encoders and VAEs) or all. Through the API, or linked, it may be any name such as text_encoder_4, or a "
        "comma list. auto: nothing.",
    )
    base = PlacementPolicy.Input(
        "base",
        optional=True,
        tooltip="The policy to override. Without one, this wish is all that is asked.",
    )
    return [component, *(setting_widget(row) for row in SETTINGS if row.scope is Scope.COMPONENT), base]


def _policy(node_id: str | None, values: Mapping[str, Any], via: Mapping[str, str]) -> Policy:
    return Policy.for_component(
        Source(SourceKind.OVERRIDE, f"Set Placement, node {node_id}"),
        values.get(_COMPONENT),
        via=via,
        **{key: values.get(key) for key in _KEYS},
    )
