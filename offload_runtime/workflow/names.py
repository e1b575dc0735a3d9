"""What placing knows by name: this pack's nodes, the sockets of its Loader, and the types that hold weights."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ..policy.sockets import SOCKETS

PACK_PREFIX = "LayerwiseOffload_"
LOADER = "LayerwiseOffload_Loader"
POLICY = "LayerwiseOffload_PlacementPolicy"
OVERRIDE = "LayerwiseOffload_SetPlacement"
LOAD_POLICY = "LayerwiseOffload_LoadPolicy"
POLICY_TYPE = "LAYERWISE_POLICY"
PLACEMENTS_TYPE = "LAYERWISE_PLACEMENTS"

LOADER_OUTPUTS = ("model", "clip", "vae", "clip_vision", "placements")
"""The Loader's outputs by the name of the input that they hand on, in order: links count them."""

PASSES_ON = ("Reroute",)
"""Nodes of the interface that hand one input on, and are no part of a prompt."""

NO_WEIGHTS = frozenset(
    {
        "HOOKS",
        "CONDITIONING",
        "LATENT",
        "IMAGE",
        "MASK",
        "AUDIO",
        "VIDEO",
        "STRING",
        "INT",
        "FLOAT",
        "BOOLEAN",
    }
    | {"COMBO", "LORA_MODEL", "SIGMAS", "SAMPLER", "GUIDER", "NOISE", "*"}
)
"""Output types of nodes that name a model file and still hand out no model of their own."""

MODEL_FILE = (".safetensors", ".sft", ".ckpt", ".pt", ".pt2", ".pth", ".bin", ".gguf")
"""How the name of a model file ends."""

SOCKET_OF: Mapping[str, str] = MappingProxyType({kind: socket for socket, kind in SOCKETS.items()})
"""Type → the socket that takes it."""
