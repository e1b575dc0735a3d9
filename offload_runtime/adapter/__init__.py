"""The adapter: the only package that imports ComfyUI."""

from .apply import apply_policy
from .placed import Placements
from .weight_files import candidate_files

__all__ = ["Placements", "apply_policy", "candidate_files"]
