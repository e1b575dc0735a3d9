"""The sockets of the Loader, from which its schema and whatever inserts it derive."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

SOCKETS: Mapping[str, str] = MappingProxyType(
    {"model": "MODEL", "clip": "CLIP", "vae": "VAE", "clip_vision": "CLIP_VISION"}
)
"""Socket for what is placed → the type of what it takes, in order."""
