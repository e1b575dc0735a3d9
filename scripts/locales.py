"""The texts of the pack's nodes in the form in which the frontend looks translations up (locales/*/nodeDefs.json)."""

from __future__ import annotations

from typing import Any

from .places import ROOT
from .workflow import PACK_PREFIX, ObjectInfo

LOCALES = ROOT / "locales"
ENGLISH = LOCALES / "en" / "nodeDefs.json"


def node_texts(object_info: ObjectInfo) -> dict[str, Any]:
    """Every text that the pack's schemas hold: node id → names, descriptions and tooltips."""
    return {
        node_id: {
            "display_name": info["display_name"],
            "description": info["description"],
            "inputs": {
                name: {"name": config[1].get("display_name") or name, "tooltip": config[1]["tooltip"]}
                for group in ("required", "optional")
                for name, config in info["input"].get(group, {}).items()
            },
            "outputs": {
                str(slot): {"name": name, "tooltip": tooltip}
                for slot, (name, tooltip) in enumerate(
                    zip(info["output_name"], info["output_tooltips"], strict=True)
                )
            },
        }
        for node_id, info in sorted(object_info.items())
        if node_id.startswith(PACK_PREFIX)
    }
