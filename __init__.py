"""Layerwise Offload: explicit, portable, honest control of where each model component lives.

Importing the pack does nothing but define two names; ComfyUI calls the entry point when it wants the nodes.
"""

from __future__ import annotations

from typing import Any

WEB_DIRECTORY = "./web"

__all__ = ["WEB_DIRECTORY", "comfy_entrypoint"]


async def comfy_entrypoint() -> Any:
    """Return the `ComfyExtension`; its modules are imported only now."""
    from .nodes.extension import LayerwiseOffloadExtension

    return LayerwiseOffloadExtension()
