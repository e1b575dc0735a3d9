"""ComfyUI's server, where the pack runs in one."""

from __future__ import annotations

import sys
from typing import Any


def running_server() -> Any:
    """Return the `PromptServer`, or None in a script or a test, where importing it would start half of ComfyUI."""
    return getattr(getattr(sys.modules.get("server"), "PromptServer", None), "instance", None)
