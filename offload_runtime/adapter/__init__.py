"""The adapter: the only package that imports ComfyUI."""

from .contacts import require

require()  # first: what follows imports from ComfyUI by name, and could only fail with a traceback

from .apply import apply_policy  # noqa: E402
from .loading import load_and_place  # noqa: E402
from .placed import Placements  # noqa: E402
from .timeline import timeline  # noqa: E402
from .weight_files import Prompt, candidate_files  # noqa: E402
from .whole_prompt import around  # noqa: E402

__all__ = ["Placements", "Prompt", "apply_policy", "around", "candidate_files", "load_and_place", "timeline"]
