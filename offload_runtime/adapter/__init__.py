"""The adapter: the only package that imports ComfyUI."""

from .apply import apply_policy
from .placed import Placements
from .weight_files import Prompt, candidate_files

__all__ = ["Placements", "Prompt", "apply_policy", "candidate_files"]
