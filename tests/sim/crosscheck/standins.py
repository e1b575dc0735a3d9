"""Shape-only stand-ins with the dimensions of real models: what the baseline ran, rebuilt from its byte
counts.

The number of tokens is not published; it is what makes the resident row come out, and only that row depends
on it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from offload_runtime.engine.check.transformer import Block, Geometry, StandIn

from .decoder import Decoder

__all__ = ["GEOMETRIES", "Block", "Geometry", "StandIn", "build"]

GEOMETRIES = {
    "clip_l": Geometry(768, 12, 3072, 12, 77, table=49408),
    "siglip": Geometry(1152, 16, 4304, 27, 729),
    "t5xxl": Geometry(4096, 64, 10240, 24, 512, table=32128, gated=True, bias=False),
    "qwen7b": Geometry(3584, 28, 18944, 28, 512, table=152064, key_heads=4, gated=True, bias=False),
    "reverse": Geometry(3072, 24, 12288, 12, 512, reverse=True),
    "video_vae": Geometry(2304, 18, 9216, 36, 1024, passes=20),
}


def build(name: str, ops: Any = nn) -> StandIn | Decoder:
    """The model on the host. Its weights are never touched, so gigabytes of them cost nothing."""
    with torch.device("meta"):
        if name == "kl_vae":
            model: StandIn | Decoder = Decoder(ops).to(torch.bfloat16)
        else:
            model = StandIn(GEOMETRIES[name], ops).to(GEOMETRIES[name].dtype)
    return model.to_empty(device="cpu").eval().requires_grad_(False)
