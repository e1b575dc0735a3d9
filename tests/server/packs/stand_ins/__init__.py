"""What a small model lacks that stands in for a large one, as custom nodes; only the tests install them."""

from __future__ import annotations

from typing import Any

import torch

Conditioning = list[tuple[torch.Tensor, dict[str, Any]]]


class AttentionMask:
    """Say that every token counts, as text encoders with padding do."""

    CATEGORY = "tests"
    FUNCTION = "mask"
    RETURN_TYPES = ("CONDITIONING",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"conditioning": ("CONDITIONING",)}}

    def mask(self, conditioning: Conditioning) -> tuple[Conditioning]:
        return (
            [(text, {**more, "attention_mask": torch.ones(text.shape[:2])}) for text, more in conditioning],
        )


class Both:
    """Come after two others."""

    CATEGORY = "tests"
    FUNCTION = "after"
    RETURN_TYPES = ("INT",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"first": ("CONDITIONING",), "second": ("IMAGE",)}}

    def after(self, first: Conditioning, second: torch.Tensor) -> tuple[int]:
        return (2,)


WEB_DIRECTORY = "./web"
NODE_CLASS_MAPPINGS = {"StandIns_AttentionMask": AttentionMask, "StandIns_Both": Both}
