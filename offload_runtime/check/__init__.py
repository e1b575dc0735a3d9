"""Check this machine: the engine measures, the policy's words say what came of it. Needs torch, not ComfyUI."""

from .ground import Extent, Ground, default_device
from .measure import check_machine
from .store import load, save

__all__ = ["Extent", "Ground", "check_machine", "default_device", "load", "save"]
