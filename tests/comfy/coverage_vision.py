"""Image and audio encoders of ComfyUI, tiny."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import torch
from coverage_check import Case, ramp
from torch import nn

VIT = {
    "num_hidden_layers": 3,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "image_size": 56,
    "patch_size": 14,
    "projection_dim": 16,
}
NAFLEX = {**VIT, "num_patches": 16}
PIXELS = 56


def image(family: str, cls: str, file: str, tiny: dict[str, Any] = VIT, pixels: int = PIXELS) -> Case:
    """Describe an image encoder whose real configuration is one of ComfyUI's JSON files."""

    def build(device: str, sizes: dict[str, Any]) -> nn.Module:
        import comfy.clip_vision
        import comfy.ops

        config = json.loads(Path(next(iter(comfy.__path__)), file).read_text())
        found = comfy.clip_vision.IMAGE_ENCODERS[config["model_type"]]
        made: nn.Module = found(config | sizes, torch.float16, device, comfy.ops.manual_cast)
        return made

    return Case(
        kind="image encoder",
        family=family,
        needs=cls,
        make=lambda: build("cpu", tiny),
        run=lambda model: model(pixel_values=ramp(1, 3, pixels, pixels), intermediate_output=-2),
        real=lambda: build("meta", {}),
    )


def audio(family: str, cls: str, tiny: dict[str, Any], left_alone: str = "") -> Case:
    """Describe an audio encoder; its defaults are its real configuration."""
    module, name = cls.split(":")

    def build(device: str, **sizes: Any) -> nn.Module:
        import comfy.ops

        made: nn.Module = getattr(importlib.import_module(module), name)(
            dtype=torch.float16, device=device, operations=comfy.ops.manual_cast, **sizes
        )
        return made

    return Case(
        kind="audio encoder",
        family=family,
        needs=cls,
        make=lambda: build("cpu", **tiny),
        run=lambda model: model(ramp(1, 1, 4000)),
        real=lambda: build("meta"),
        left_alone=left_alone,
    )


PROJECTION = "comfy.clip_model:CLIPVisionModelProjection"
CASES = [
    image("CLIP ViT-L/14", PROJECTION, "clip_vision_config_vitl.json"),
    image("CLIP ViT-H/14", PROJECTION, "clip_vision_config_h.json"),
    image("CLIP ViT-bigG/14", PROJECTION, "clip_vision_config_g.json"),
    image("SigLIP SO400M/14 (384)", PROJECTION, "clip_vision_siglip_384.json"),
    image(
        "SigLIP 2 NaFlex",
        "comfy.clip_model:Siglip2Embeddings",
        "clip_vision_siglip2_base_naflex.json",
        NAFLEX,
    ),
    image(
        "DINOv2 large", "comfy.image_encoders.dino2:Dinov2Model", "image_encoders/dino2_large.json", VIT, 518
    ),
    image(
        "DINOv2 giant", "comfy.image_encoders.dino2:Dinov2Model", "image_encoders/dino2_giant.json", VIT, 518
    ),
    image("DINOv3 large", "comfy.image_encoders.dino3:DINOv3ViTModel", "image_encoders/dino3_large.json"),
    audio(
        "wav2vec 2 large",
        "comfy.audio_encoders.wav2vec2:Wav2Vec2Model",
        {"embed_dim": 64, "num_heads": 2, "num_layers": 3},
        left_alone="out of others",
    ),
    audio(
        "Whisper large v3",
        "comfy.audio_encoders.whisper:WhisperLargeV3",
        {"n_audio_state": 32, "n_audio_head": 2, "n_audio_layer": 3},
    ),
]
