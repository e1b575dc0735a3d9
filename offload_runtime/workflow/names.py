"""What placing knows by name: this pack's nodes, the sockets of its Loaders, and the types that hold weights."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ..policy.sockets import OTHERS, SOCKETS

PACK_PREFIX = "LayerwiseOffload_"
LOADER = "LayerwiseOffload_Loader"
OTHER_MODELS = "LayerwiseOffload_OtherModels"
POLICY = "LayerwiseOffload_PlacementPolicy"
OVERRIDE = "LayerwiseOffload_SetPlacement"
LOAD_POLICY = "LayerwiseOffload_LoadPolicy"
POLICY_TYPE = "LAYERWISE_POLICY"
PLACEMENTS_TYPE = "LAYERWISE_PLACEMENTS"

PLACERS: Mapping[str, Mapping[str, str]] = MappingProxyType({LOADER: SOCKETS, OTHER_MODELS: OTHERS})
"""Our node that things go through → its sockets and the types that they take; its outputs are these, in order."""

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

SOCKET_OF: Mapping[str, tuple[str, str]] = MappingProxyType(
    {kind: (placer, socket) for placer, sockets in PLACERS.items() for socket, kind in sockets.items()}
)
"""Type → our node that takes it, and by which socket."""


def handed_on(placer: str) -> tuple[str, ...]:
    """Return the outputs of a node of ours by the name of the input that they hand on, in order: links count them."""
    return (*PLACERS.get(placer, {}), "placements")
