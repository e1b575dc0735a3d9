"""What kinds of nodes hand out and take, as ComfyUI's `/object_info` says it, or a small table of its own loaders."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class NodeTypes:
    """One kind of node.

    Attributes:
        outputs: the types of its outputs, in order.
        takes: the types of its inputs.
        ends: whether ComfyUI runs it for its own sake, as it does a node that saves; None where nobody said.
    """

    outputs: tuple[str, ...]
    takes: frozenset[str] = frozenset()
    ends: bool | None = None


Types = Callable[[str], NodeTypes | None]
"""Kind of node → what it hands out and takes, or None for one that is not known."""

COMFYUI_LOADERS: Mapping[str, tuple[str, ...]] = {
    "CheckpointLoader": ("MODEL", "CLIP", "VAE"),
    "CheckpointLoaderSimple": ("MODEL", "CLIP", "VAE"),
    "unCLIPCheckpointLoader": ("MODEL", "CLIP", "VAE", "CLIP_VISION"),
    "ImageOnlyCheckpointLoader": ("MODEL", "CLIP_VISION", "VAE"),
    "DiffusersLoader": ("MODEL", "CLIP", "VAE"),
    "UNETLoader": ("MODEL",),
    "CLIPLoader": ("CLIP",),
    "DualCLIPLoader": ("CLIP",),
    "TripleCLIPLoader": ("CLIP",),
    "QuadrupleCLIPLoader": ("CLIP",),
    "LTXAVTextEncoderLoader": ("CLIP",),
    "VAELoader": ("VAE",),
    "LTXVAudioVAELoader": ("VAE",),
    "CLIPVisionLoader": ("CLIP_VISION",),
    "ControlNetLoader": ("CONTROL_NET",),
    "StyleModelLoader": ("STYLE_MODEL",),
    "GLIGENLoader": ("GLIGEN",),
    "UpscaleModelLoader": ("UPSCALE_MODEL",),
    "LatentUpscaleModelLoader": ("LATENT_UPSCALE_MODEL",),
    "ModelPatchLoader": ("MODEL_PATCH",),
    "AudioEncoderLoader": ("AUDIO_ENCODER",),
    "PhotoMakerLoader": ("PHOTOMAKER",),
    "DiffControlNetLoader": ("CONTROL_NET",),
    "LoadBackgroundRemovalModel": ("BACKGROUND_REMOVAL",),
    "FrameInterpolationModelLoader": ("INTERP_MODEL",),
    "OpticalFlowLoader": ("OPTICAL_FLOW",),
    "LoadDA3Model": ("DA3_MODEL",),
    "LoadMoGeModel": ("MOGE_MODEL",),
    "LoadMediaPipeFaceLandmarker": ("FACE_DETECTION_MODEL",),
}
"""ComfyUI's own loaders → the types of their outputs, for prompts that come without `/object_info`."""


def of_comfyui_loaders(kind: str) -> NodeTypes | None:
    """Look a kind of node up among ComfyUI's own loaders."""
    outputs = COMFYUI_LOADERS.get(kind)
    return None if outputs is None else NodeTypes(outputs)


def of_object_info(info: Mapping[str, Any]) -> Types:
    """Return a look-up in what `/object_info` answers.

    Raises:
        ValueError: it is no such answer.
    """
    try:
        found = {kind: described(one) for kind, one in info.items()}
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError(f"no node types as /object_info gives them: {error}") from error
    return found.get


def described(info: Mapping[str, Any]) -> NodeTypes:
    """Return the types of one node as `/object_info` has it."""
    groups = [info.get("input", {}).get(group) or {} for group in ("required", "optional")]
    outputs = tuple(kind if isinstance(kind, str) else "COMBO" for kind in info["output"])
    takes = alternatives(config[0] for group in groups for config in group.values())
    return NodeTypes(outputs, takes, bool(info.get("output_node", False)))


def alternatives(types: Iterable[Any]) -> frozenset[str]:
    """Return what inputs of some types take; `A,B` takes either, and a list of choices no output of a model."""
    return frozenset(one.strip() for kind in types if isinstance(kind, str) for one in kind.split(","))
