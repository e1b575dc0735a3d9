"""How to build a tiny text encoder out of ComfyUI's real class, and how to prompt it."""

from __future__ import annotations

import importlib
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import torch
from coverage_check import Case, Shrink, all_of, smaller
from torch import nn

TE = "comfy.text_encoders"
IDS = (5, 6, 7, 8, 9, 1)

CLIP = {
    "num_hidden_layers": 3,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "vocab_size": 100,
    "projection_dim": 32,
    "max_position_embeddings": len(IDS),
}
T5 = {"num_layers": 3, "d_model": 32, "d_kv": 16, "num_heads": 2, "d_ff": 64, "vocab_size": 100}
BERT = {
    "num_hidden_layers": 3,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "vocab_size": 100,
}
LLAMA = {**BERT, "num_hidden_layers": 4, "num_key_value_heads": 1}
QWEN3VL = {"hidden_size": 32, "intermediate_size": 64, "depth": 3, "deepstack_visual_indexes": [0, 1, 2]}


class Prompt(defaultdict[str, list[list[tuple[Any, float]]]]):
    """The same tokens for every encoder that asks for some by name."""

    def __init__(self, *extra: Any) -> None:
        prompt = [(token, 1.0) for token in (*IDS[:3], *extra, *IDS[3:])]
        super().__init__(lambda: [list(prompt)])

    def __contains__(self, key: object) -> bool:
        return key != "sam3_per_prompt"


def picture() -> Prompt:
    """Return a prompt with an image in it."""
    image = torch.linspace(0, 1, 64 * 64 * 3).reshape(1, 64, 64, 3)
    return Prompt({"type": "image", "data": image, "original_type": "image"})


def qwen2vl() -> list[AbstractContextManager[Any]]:
    """Shrink the vision tower of Qwen2.5-VL."""
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "num_layers": 3}
    return [smaller(f"{TE}.qwen_vl", "Qwen2VLVisionTransformer", **sizes)]


def qwen3vl() -> list[AbstractContextManager[Any]]:
    """Shrink the vision towers of Qwen3-VL."""
    module = f"{TE}.qwen3vl"
    sizes = importlib.import_module(module).QWEN3VL_VISION
    return [
        mock.patch.dict(f"{module}.QWEN3VL_VISION", dict.fromkeys(sizes, QWEN3VL)),
        mock.patch.dict(f"{module}.QWEN3VL_VISION_COMMON", num_heads=2, num_position_embeddings=16),
    ]


def attributes(owner: str, **values: Any) -> Shrink:
    """Shrink what stands in the attributes of a class or module."""
    return lambda: [mock.patch(f"{owner}.{name}", value) for name, value in values.items()]


def encode(model: Any, prompt: Prompt) -> Any:
    """Encode, as `CLIP.encode_from_tokens` does."""
    model.reset_clip_options()
    return model.encode_token_weights(prompt)


def text(
    family: str,
    needs: str,
    tiny: dict[str, dict[str, Any]],
    *,
    prompt: Callable[[], Prompt] = Prompt,
    shrink: Shrink = list,
    model_options: dict[str, Any] | None = None,
    note: str = "",
    **how: Any,
) -> Case:
    """Describe a text encoder whose class takes ComfyUI's usual arguments.

    Args:
        tiny: name of an encoder → what differs from its real configuration.
        shrink: patches for sizes that no configuration reaches.
        model_options: more that makes it tiny.
        how: what `make_encoder` shall do besides.
    """

    def make() -> nn.Module:
        with all_of(shrink()):
            sizes = {f"{key}_model_config": config for key, config in tiny.items()}
            return make_encoder(needs, "cpu", sizes | (model_options or {}), **how)

    return Case(
        kind="text encoder",
        family=family,
        needs=needs,
        make=make,
        run=lambda model: encode(model, prompt()),
        real=lambda: make_encoder(needs, "meta", {}, **how),
        note=note,
    )


def make_encoder(
    needs: str,
    device: str,
    model_options: dict[str, Any],
    *,
    cls: Callable[[Any], Any] = lambda found: found,
    after: Callable[[nn.Module], object] = lambda model: None,
    **arguments: Any,
) -> nn.Module:
    """Make a text encoder in half precision.

    Args:
        cls: makes the class out of what `needs` names, where a function does that.
        after: called with the model when it has been made.
        arguments: further ones of the class.
    """
    module, name = needs.split(":")
    found = cls(getattr(importlib.import_module(module), name))
    model: nn.Module = found(device=device, dtype=torch.float16, model_options=model_options, **arguments)
    after(model)
    return model
