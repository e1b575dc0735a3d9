"""Putting Loaders into workflows and prompts, and taking them out again: pure Python, no torch and no ComfyUI."""

from .api import placed as placed_prompt
from .api import planned as planned_prompt
from .document import Placing, is_ui, place, remove
from .layout import LOADER_SIZE, POLICY_SIZE, box_of, free_place
from .names import LOADER_OUTPUTS, PACK_PREFIX, SOCKETS
from .plan import LeftOut, Plan, Source
from .types import COMFYUI_LOADERS, NodeTypes, Types, described, of_comfyui_loaders, of_object_info
from .ui import MARK
from .ui import planned as planned_workflow

__all__ = [
    "COMFYUI_LOADERS",
    "LOADER_OUTPUTS",
    "LOADER_SIZE",
    "MARK",
    "PACK_PREFIX",
    "POLICY_SIZE",
    "SOCKETS",
    "LeftOut",
    "NodeTypes",
    "Placing",
    "Plan",
    "Source",
    "Types",
    "box_of",
    "described",
    "free_place",
    "is_ui",
    "of_comfyui_loaders",
    "of_object_info",
    "place",
    "placed_prompt",
    "planned_prompt",
    "planned_workflow",
    "remove",
]
