"""The pack's socket types, declared once."""

from __future__ import annotations

from comfy_api.latest import io

PlacementPolicy = io.Custom("PLACEMENT_POLICY")
Placements = io.Custom("PLACEMENTS")
PlacementReport = io.Custom("PLACEMENT_REPORT")

CATEGORY = "advanced/offload"

SOCKETS = ("model", "clip", "vae", "clip_vision")
"""The sockets of the loader for what is placed, in order."""
