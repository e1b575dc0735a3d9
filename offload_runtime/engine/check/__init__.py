"""What a machine can do, measured, and whether the engine's claims hold on it. Knows torch, not ComfyUI."""

from .claims import T5_LIKE, Check, Setup, engine_checks, randomize
from .disk import Reads, disk_speed
from .equality import mapped_equals_resident, streamed_equals_resident
from .kinds import Kinds, kinds_on
from .link import Link, copy_to_device, memory_speed
from .overlap import Overlap, overlaps
from .pins import Pins, cuda_pins, pinned, pinned_blocks
from .stopwatch import Stopwatch
from .transformer import Block, Geometry, StandIn

__all__ = [
    "T5_LIKE",
    "Block",
    "Check",
    "Geometry",
    "Kinds",
    "Link",
    "Overlap",
    "Pins",
    "Reads",
    "Setup",
    "StandIn",
    "Stopwatch",
    "copy_to_device",
    "cuda_pins",
    "disk_speed",
    "engine_checks",
    "kinds_on",
    "mapped_equals_resident",
    "memory_speed",
    "overlaps",
    "pinned",
    "pinned_blocks",
    "randomize",
    "streamed_equals_resident",
]
