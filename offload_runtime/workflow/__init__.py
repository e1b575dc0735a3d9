"""Putting Loaders into workflows and prompts, and taking them out again: pure Python, no torch and no ComfyUI."""

from .api import placed as placed_prompt
from .api import planned as planned_prompt
from .document import Placing, is_ui, place, plan_workflow, remove
from .layout import box_of
from .names import PACK_PREFIX, PLACERS
from .plan import LeftOut, Loader, Plan, Source
from .types import (
    COMFYUI_LOADERS,
    NodeTypes,
    Types,
    alternatives,
    described,
    of_comfyui_loaders,
    of_object_info,
)
from .ui import MARK

__all__ = [
    "COMFYUI_LOADERS",
    "MARK",
    "PACK_PREFIX",
    "PLACERS",
    "LeftOut",
    "Loader",
    "NodeTypes",
    "Placing",
    "Plan",
    "Source",
    "Types",
    "alternatives",
    "box_of",
    "described",
    "is_ui",
    "of_comfyui_loaders",
    "of_object_info",
    "place",
    "placed_prompt",
    "plan_workflow",
    "planned_prompt",
    "remove",
]
