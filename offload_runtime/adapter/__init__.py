"""The adapter: the only package that imports ComfyUI."""

from .apply import apply_policy
from .handles import SLOTS
from .placed import Placements
from .weight_files import candidate_files

__all__ = ["SLOTS", "Placements", "apply_policy", "candidate_files"]
