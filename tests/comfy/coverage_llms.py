"""Text encoders that are language models, many of which also see."""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager
from functools import partial
from typing import Any
from unittest import mock

import torch
from coverage_text import (
    BERT,
    CLIP,
    LLAMA,
    T5,
    TE,
    Prompt,
    attributes,
    picture,
    qwen2vl,
    qwen3vl,
    text,
)
from torch import nn

SEES = "its vision layers run when an image is embedded"
DEEP = {**LLAMA, "num_hidden_layers": 36}
SIGLIP = {
    "model_type": "siglip_vision_model",
    "num_channels": 3,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_size": 32,
    "intermediate_size": 64,
    "image_size": 56,
    "patch_size": 14,
    "num_attention_heads": 2,
    "num_hidden_layers": 3,
}
GEMMA4_VISION = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "image_size": 64,
    "num_attention_heads": 2,
    "num_hidden_layers": 3,
    "patch_size": 16,
    "head_dim": 16,
    "rms_norm_eps": 1e-6,
    "position_embedding_size": 16,
    "pooling_kernel_size": 2,
}
GEMMA4_AUDIO = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "output_proj_dims": 32,
    "rms_norm_eps": 1e-6,
}


def of_module(module: str, name: str) -> Any:
    """Return something of one of ComfyUI's text encoder modules."""
    return getattr(importlib.import_module(f"{TE}.{module}"), name)


def sound_and_picture() -> Prompt:
    """Return a prompt with an image and a sound (mel frames) in it."""
    image = torch.linspace(0, 1, 64 * 64 * 3).reshape(1, 64, 64, 3)
    sound = torch.linspace(-1, 1, 48 * 128).reshape(1, 48, 128)
    return Prompt({"type": "image", "data": image}, {"type": "audio", "data": sound})


def t5gemma() -> list[AbstractContextManager[Any]]:
    """Shrink T5-Gemma, which takes no configuration."""
    module = importlib.import_module(f"{TE}.sa3")
    config = module.T5GemmaEncoderConfig()
    vars(config).update(LLAMA, num_key_value_heads=2, head_dim=16)
    return [mock.patch.object(module, "T5GemmaEncoderConfig", return_value=config)]


def speaking() -> Prompt:
    """Return a prompt for which ACE-Step 1.5 also writes audio codes."""
    prompt = Prompt()
    prompt["lm_metadata"] = {
        "generate_audio_codes": True,
        "min_tokens": 3,
        "max_tokens": 3,
        "seed": 0,
        "cfg_scale": 2.0,
        "temperature": 0.8,
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.0,
    }
    return prompt


def singing() -> Prompt:
    """Return a prompt for two frames of music."""
    prompt = Prompt()
    prompt.update(seed=0, max_audio_frames=2, cfg_scale=2.0, top_k=5)
    return prompt


def give_weights(model: nn.Module) -> None:
    """Load zeros into operations that have no weights before a file is loaded."""
    shapes = {
        f"{name}.weight": getattr(module, "_orig_shape", None) or (module.out_features, module.in_features)
        for name, module in model.named_modules()
        if getattr(module, "weight", 0) is None
        or (hasattr(module, "in_features") and not hasattr(module, "weight"))
    }
    device = next(model.parameters()).device
    model.load_state_dict(
        {k: torch.zeros(s, dtype=torch.float16, device=device) for k, s in shapes.items()}, strict=False
    )


NO_VOCAB = {k: v for k, v in LLAMA.items() if k != "vocab_size"}
GEMMA_SIZES = {"vision_config": SIGLIP, "mm_tokens_per_image": 4}

CASES = [
    text(
        "Mistral 24B (Flux 2)",
        f"{TE}.flux:Flux2TEModel",
        {"mistral3_24b": {**LLAMA, "num_hidden_layers": 31}},
    ),
    text("Qwen3 4B (Flux 2 Klein)", f"{TE}.flux:klein_te", {"qwen3_4b": DEEP}, cls=lambda make: make()),
    text("Ministral 3B (Ernie)", f"{TE}.ernie:ErnieTEModel", {"ministral3_3b": LLAMA}),
    text("Qwen3 4B (Z-Image)", f"{TE}.z_image:ZImageTEModel", {"qwen3_4b": LLAMA}),
    text("Qwen3 0.6B (Anima)", f"{TE}.anima:AnimaTEModel", {"qwen3_06b": LLAMA}),
    text("Ovis 2.5 (Ovis-Image)", f"{TE}.ovis:OvisTEModel", {"qwen3_2b": LLAMA}),
    text("Qwen2.5 3B (OmniGen2)", f"{TE}.omnigen2:Omnigen2Model", {"qwen25_3b": LLAMA}),
    text(
        "Qwen2.5-VL 7B (Qwen-Image)",
        f"{TE}.qwen_image:QwenImageTEModel",
        {"qwen25_7b": LLAMA},
        prompt=picture,
        shrink=qwen2vl,
        note=SEES,
    ),
    text(
        "Qwen2.5-VL 7B, byT5 (HunyuanImage, HunyuanVideo 1.5)",
        f"{TE}.hunyuan_image:HunyuanImageTEModel",
        {"qwen25_7b": LLAMA, "": T5},
        prompt=picture,
        shrink=qwen2vl,
        note=f"{SEES}; byT5 when the prompt quotes a text",
    ),
    text(
        "Qwen2.5-VL 7B, CLIP-L (Kandinsky 5)",
        f"{TE}.kandinsky5:Kandinsky5TEModel",
        {"qwen25_7b": LLAMA, "clip_l": CLIP, "": CLIP},
        prompt=picture,
        shrink=qwen2vl,
        note=SEES,
    ),
    text(
        "Qwen2.5-VL 7B (LongCat-Image)",
        f"{TE}.longcat_image:LongCatImageTEModel",
        {"qwen25_7b": LLAMA},
        prompt=picture,
        shrink=qwen2vl,
        note=SEES,
    ),
    text("Gemma 2 2B (Lumina 2)", f"{TE}.lumina2:LuminaModel", {"gemma2_2b": LLAMA}),
    text("Gemma 2 2B (PixelDiT)", f"{TE}.pixeldit:PixelDiTGemma2TE", {"gemma2_2b": LLAMA}),
    text(
        "Gemma 3 4B, Jina CLIP 2 (NewBie)",
        f"{TE}.newbie:NewBieTEModel",
        {"": {**BERT, "num_attention_heads": 4}},
    ),
    text(
        "Gemma 3 12B (LTX-2)",
        f"{TE}.lt:LTXAVTEModel",
        {"": LLAMA},
        prompt=picture,
        shrink=attributes(f"{TE}.llama.Gemma3_12B_Config", **GEMMA_SIZES),
        note=SEES,
        dtype_llama=torch.float16,
    ),
    text(
        "Gemma 3 4B with vision",
        f"{TE}.lumina2:Gemma3_4B_Vision_Model",
        {"gemma3_4b_vision": LLAMA},
        prompt=picture,
        shrink=attributes(f"{TE}.llama.Gemma3_4B_Vision_Config", **GEMMA_SIZES),
        cls=lambda clip: partial(
            of_module("lumina2", "LuminaModel"), name="gemma3_4b_vision", clip_model=clip
        ),
        note=SEES,
    ),
    text(
        "Qwen3-VL 8B",
        f"{TE}.qwen3vl:Qwen3VLTEModel",
        {"qwen3vl_8b": LLAMA},
        prompt=picture,
        shrink=qwen3vl,
        note=SEES,
    ),
    text(
        "Qwen3-VL 4B (Krea 2)",
        f"{TE}.krea2:Krea2TEModel",
        {"qwen3vl_4b": DEEP},
        prompt=picture,
        shrink=qwen3vl,
        note=SEES,
    ),
    text(
        "Qwen3-VL 8B (Ideogram 4)",
        f"{TE}.ideogram4:Ideogram4Qwen3VLTEModel",
        {"qwen3vl_8b": DEEP},
        prompt=picture,
        shrink=qwen3vl,
        note=SEES,
    ),
    text(
        "Qwen3-VL 8B (Boogu)",
        f"{TE}.boogu:BooguTEModel",
        {"qwen3vl_8b": LLAMA},
        prompt=picture,
        shrink=qwen3vl,
        note=SEES,
    ),
    text(
        "Qwen3-VL 4B (Mage-Flow)",
        f"{TE}.mage_flow:MageFlowTEModel",
        {"qwen3vl_4b": LLAMA},
        prompt=picture,
        shrink=qwen3vl,
        note=SEES,
    ),
    text(
        "Qwen3-VL 8B (JoyImage)",
        f"{TE}.joyimage:JoyImageTEModel",
        {"qwen3vl_8b": LLAMA},
        prompt=picture,
        shrink=qwen3vl,
        note=SEES,
    ),
    text(
        "Qwen3-VL 32B (MiniMax-H3)",
        f"{TE}.minimax:MiniMaxH3TEModel",
        {"qwen3vl_32b": LLAMA},
        prompt=picture,
        shrink=qwen3vl,
        note=SEES,
    ),
    text(
        "Qwen3.5 2B",
        f"{TE}.qwen35:Qwen35TEModel",
        {
            "qwen35_2b": {
                **LLAMA,
                "linear_num_key_heads": 2,
                "linear_num_value_heads": 2,
                "linear_key_head_dim": 16,
                "linear_value_head_dim": 16,
            }
        },
        prompt=picture,
        shrink=lambda: [
            mock.patch.dict(
                f"{TE}.qwen35.QWEN35_VISION_DEFAULTS",
                hidden_size=32,
                num_heads=2,
                intermediate_size=64,
                depth=3,
                num_position_embeddings=16,
            )
        ],
        note=SEES,
    ),
    text(
        "Gemma 4 E4B",
        f"{TE}.gemma4:gemma4_te",
        {
            "gemma4": {
                **LLAMA,
                "num_hidden_layers": 12,
                "hidden_size_per_layer_input": 8,
                "num_kv_shared_layers": 6,
            }
        },
        prompt=sound_and_picture,
        shrink=attributes(
            f"{TE}.gemma4.Gemma4Config", vision_config=GEMMA4_VISION, audio_config=GEMMA4_AUDIO
        ),
        cls=lambda make: make(model_class=of_module("gemma4", "Gemma4_E4B")),
        note="its vision and audio layers run when an image or a sound is embedded",
    ),
    text(
        "GPT-OSS 20B (Lens)",
        f"{TE}.gpt_oss:LensTEModel",
        {},
        model_options={
            "gpt_oss_config": {**LLAMA, "head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2},
            "selected_layers": (1, 3),
            "txt_offset": 0,
        },
        after=give_weights,
    ),
    text(
        "CLIP text (SAM 3)",
        f"{TE}.sam3_clip:SAM3ClipModelWrapper",
        {"sam3_clip": CLIP},
        shrink=lambda: [mock.patch.dict(f"{TE}.sam3_clip.SAM3_CLIP_CONFIG")],
    ),
    text("T5-Gemma (Stable Audio 3)", f"{TE}.sa3:SAT5GemmaModel", {}, shrink=t5gemma),
    text(
        "Qwen3 0.6B, 2B (ACE-Step 1.5)",
        f"{TE}.ace15:ACE15TEModel",
        {"": NO_VOCAB},
        prompt=speaking,
        note="the 2B one runs once per audio code that it writes",
        lm_model="qwen3_2b",
    ),
    text(
        "Qwen3 8B (MiniMax Music 3)",
        f"{TE}.minimax_music:MiniMaxMusic3TEModel",
        {},
        note="runs once per frame of music that it writes",
        prompt=singing,
        shrink=lambda: [
            mock.patch.dict(
                f"{TE}.minimax_music.MODEL_CONFIG",
                {
                    **NO_VOCAB,
                    "decoder_num_heads": 2,
                    "decoder_intermediate_size": 64,
                    "decoder_num_layers": 2,
                    "audio_vocab_size": 16,
                },
            )
        ],
    ),
]
