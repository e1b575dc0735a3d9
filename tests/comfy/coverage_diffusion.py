"""Diffusion models of ComfyUI, tiny."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from coverage_check import ramp, smaller
from coverage_diffusion_sizes import (
    CHROMA,
    COSMOS2,
    FLUX,
    FLUX2,
    HIDREAM,
    HUNYUAN,
    LTX,
    MMDIT,
    MOCHI,
    NEXT,
    SD1,
    SDXL,
    TINY_CHROMA,
    TINY_COSMOS2,
    TINY_FLUX,
    TINY_FLUX2,
    TINY_HIDREAM,
    TINY_HUNYUAN,
    TINY_MMDIT,
    TINY_NEXT,
    TINY_UNET,
    TINY_WAN,
    WAN,
    ZIMAGE,
)
from coverage_dit import dit

LDM = "comfy.ldm"
TIME = torch.ones(1)


TEXT = ramp(1, 5, 8)
LATENT = ramp(1, 4, 8, 8)
CLIP = ramp(1, 4, 2, 4, 4)


def ace(model: Any) -> Any:
    """Denoise, as ACE-Step does; it asks torch for a dtype by a deprecated name."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.get_autocast_gpu_dtype", DeprecationWarning)
        return model(
            ramp(1, 8, 16, 4),
            TIME,
            context=ramp(1, 5, 768),
            speaker_embeds=ramp(1, 512),
            lyric_token_idx=torch.ones(1, 4, dtype=torch.long),
        )


CASES = [
    dit(
        "SD 1.x",
        f"{LDM}.modules.diffusionmodules.openaimodel:UNetModel",
        lambda m: m(LATENT, TIME, context=TEXT),
        TINY_UNET,
        SD1,
    ),
    dit(
        "SDXL",
        f"{LDM}.modules.diffusionmodules.openaimodel:UNetModel",
        lambda m: m(LATENT, TIME, context=TEXT, y=ramp(1, 8)),
        TINY_UNET
        | {
            "num_classes": "sequential",
            "adm_in_channels": 8,
            "transformer_depth": [0, 2],
            "transformer_depth_output": [0, 0, 2, 2],
            "transformer_depth_middle": 2,
            "use_linear_in_transformer": True,
        },
        SDXL,
    ),
    dit(
        "SD3",
        f"{LDM}.modules.diffusionmodules.mmdit:OpenAISignatureMMDITWrapper",
        lambda m: m(LATENT, TIME, context=TEXT, y=ramp(1, 8)),
        TINY_MMDIT,
        MMDIT,
    ),
    dit(
        "Flux",
        f"{LDM}.flux.model:Flux",
        lambda m: m(LATENT, TIME, TEXT, ramp(1, 8), TIME),
        TINY_FLUX,
        FLUX,
        "FluxParams",
    ),
    dit(
        "Flux 2",
        f"{LDM}.flux.model:Flux",
        lambda m: m(ramp(1, 8, 4, 4), TIME, TEXT, None, TIME),
        TINY_FLUX2,
        FLUX2,
        "FluxParams",
    ),
    dit(
        "Chroma",
        f"{LDM}.chroma.model:Chroma",
        lambda m: m(LATENT, TIME, TEXT, TIME),
        TINY_CHROMA,
        CHROMA,
        "ChromaParams",
    ),
    dit(
        "Wan 2.1 14B (text to video)",
        f"{LDM}.wan.model:WanModel",
        lambda m: m(CLIP, TIME, TEXT),
        TINY_WAN,
        WAN,
    ),
    dit(
        "Wan 2.1 14B (image to video)",
        f"{LDM}.wan.model:WanModel",
        lambda m: m(CLIP, TIME, TEXT, clip_fea=ramp(1, 257, 1280)),
        TINY_WAN | {"model_type": "i2v"},
        WAN | {"model_type": "i2v", "in_dim": 36},
    ),
    dit(
        "Wan 2.1 VACE",
        f"{LDM}.wan.model:VaceWanModel",
        lambda m: m(CLIP, TIME, TEXT, vace_context=ramp(1, 1, 6, 2, 4, 4), vace_strength=[1.0]),
        TINY_WAN | {"num_layers": 4, "vace_layers": 2, "vace_in_dim": 6},
        WAN | {"vace_layers": 8, "vace_in_dim": 96},
    ),
    dit(
        "Qwen-Image",
        f"{LDM}.qwen_image.model:QwenImageTransformer2DModel",
        lambda m: m(ramp(1, 4, 1, 4, 4), TIME, TEXT),
        {
            "in_channels": 16,
            "out_channels": 4,
            "num_layers": 3,
            "attention_head_dim": 16,
            "num_attention_heads": 2,
            "joint_attention_dim": 8,
            "axes_dims_rope": (4, 6, 6),
        },
        {},
    ),
    dit(
        "HunyuanVideo",
        f"{LDM}.hunyuan_video.model:HunyuanVideo",
        lambda m: m(CLIP, TIME, TEXT, ramp(1, 8), guidance=TIME),
        TINY_HUNYUAN,
        HUNYUAN,
        "HunyuanVideoParams",
    ),
    dit("Lumina 2", f"{LDM}.lumina.model:NextDiT", lambda m: m(LATENT, TIME, TEXT, 5), TINY_NEXT, NEXT),
    dit(
        "Z-Image",
        f"{LDM}.lumina.model:NextDiT",
        lambda m: m(LATENT, TIME, TEXT, 5),
        TINY_NEXT
        | {
            "dim": 256,
            "n_heads": 8,
            "n_kv_heads": 8,
            "axes_dims": [8, 12, 12],
            "z_image_modulation": True,
            "pad_tokens_multiple": 4,
            "qk_norm": True,
        },
        ZIMAGE,
    ),
    dit(
        "LTX-Video",
        f"{LDM}.lightricks.model:LTXVModel",
        lambda m: m(ramp(1, 8, 2, 2, 2), TIME, TEXT, None),
        LTX,
        {},
    ),
    dit(
        "Cosmos-Predict2 2B",
        f"{LDM}.cosmos.predict2:MiniTrainDIT",
        lambda m: m(CLIP, TIME, TEXT),
        TINY_COSMOS2,
        COSMOS2,
    ),
    dit(
        "HiDream",
        f"{LDM}.hidream.model:HiDreamImageTransformer2DModel",
        lambda m: m(LATENT, TIME, ramp(1, 8), TEXT, encoder_hidden_states_llama3=ramp(1, 2, 5, 8)),
        TINY_HIDREAM,
        HIDREAM,
    ),
    dit(
        "AuraFlow",
        f"{LDM}.aura.mmdit:MMDiT",
        lambda m: m(LATENT, TIME, TEXT),
        {
            "dim": 256,
            "n_layers": 4,
            "n_double_layers": 2,
            "n_heads": 1,
            "global_conddim": 256,
            "cond_seq_dim": 8,
            "max_seq": 256,
        },
        {},
    ),
    dit(
        "PixArt",
        f"{LDM}.pixart.pixartms:PixArtMS",
        lambda m: m(ramp(1, 4, 40, 40), TIME, TEXT),
        {
            "input_size": 8,
            "hidden_size": 32,
            "depth": 3,
            "num_heads": 2,
            "caption_channels": 8,
            "micro_condition": False,
            "model_max_length": 5,
        },
        {"micro_condition": False},
    ),
    dit(
        "Mochi",
        f"{LDM}.genmo.joint_model.asymm_models_joint:AsymmDiTJoint",
        lambda m: m(CLIP, TIME, ramp(1, 256, 8), torch.ones(1, 256, dtype=torch.bool)),
        MOCHI
        | {
            "in_channels": 4,
            "hidden_size_x": 32,
            "mlp_ratio_x": 384,
            "hidden_size_y": 16,
            "depth": 3,
            "num_heads": 2,
            "t5_feat_dim": 8,
        },
        MOCHI,
    ),
    dit(
        "HunyuanDiT",
        f"{LDM}.hydit.models:HunYuanDiT",
        lambda m: m(
            LATENT,
            TIME,
            ramp(1, 77, 8),
            text_embedding_mask=torch.ones(1, 77),
            encoder_hidden_states_t5=ramp(1, 256, 8),
            text_embedding_mask_t5=torch.ones(1, 256),
        ),
        {
            "hidden_size": 32,
            "depth": 4,
            "num_heads": 2,
            "text_states_dim": 8,
            "text_states_dim_t5": 8,
            "use_style_cond": False,
            "size_cond": False,
            "qk_norm": True,
        },
        {"hidden_size": 1408, "depth": 40, "num_heads": 16, "qk_norm": True},
    ),
    dit(
        "OmniGen 2",
        f"{LDM}.omnigen.omnigen2:OmniGen2Transformer2DModel",
        lambda m: m(LATENT, TIME, TEXT, 5, ref_latents=[LATENT]),
        {
            "in_channels": 4,
            "hidden_size": 48,
            "num_layers": 3,
            "num_attention_heads": 2,
            "num_kv_heads": 1,
            "axes_dim_rope": (8, 8, 8),
            "axes_lens": (64, 64, 64),
            "text_feat_dim": 8,
            "multiple_of": 16,
        },
        {
            "text_feat_dim": 2048,
            "num_layers": 32,
            "hidden_size": 2520,
            "num_attention_heads": 21,
            "num_kv_heads": 7,
            "axes_dim_rope": (40, 40, 40),
            "axes_lens": (1024, 1664, 1664),
        },
    ),
    dit(
        "ACE-Step",
        f"{LDM}.ace.model:ACEStepTransformer2DModel",
        ace,
        {
            "num_layers": 3,
            "attention_head_dim": 16,
            "num_attention_heads": 2,
            "lyric_hidden_size": 32,
            "lyric_encoder_vocab_size": 50,
            "ssl_latent_dims": [8, 8],
        },
        {},
        shrink=lambda: [
            smaller(
                f"{LDM}.ace.model",
                "LyricEncoder",
                output_size=32,
                attention_heads=2,
                linear_units=64,
                num_blocks=2,
            )
        ],
        idle={"diffusion_model.projectors": "only used in training"},
    ),
    dit(
        "Stable Audio",
        f"{LDM}.audio.dit:AudioDiffusionTransformer",
        lambda m: m(ramp(1, 4, 8), TIME, context=ramp(1, 5, 64), global_embed=ramp(1, 8)),
        {
            "io_channels": 4,
            "embed_dim": 64,
            "cond_token_dim": 64,
            "global_cond_dim": 8,
            "depth": 3,
            "num_heads": 1,
        },
        {},
    ),
    dit(
        "Hunyuan3D 2",
        f"{LDM}.hunyuan3d.model:Hunyuan3Dv2",
        lambda m: m(ramp(1, 4, 6), TIME, TEXT),
        {
            "in_channels": 4,
            "context_in_dim": 8,
            "hidden_size": 32,
            "num_heads": 2,
            "depth": 2,
            "depth_single_blocks": 3,
        },
        {},
    ),
    dit(
        "Stable Cascade stage C",
        f"{LDM}.cascade.stage_c:StageC",
        lambda m: m(ramp(1, 16, 8, 8), TIME, ramp(1, 5, 8), ramp(1, 1, 8), ramp(1, 1, 8)),
        {
            "c_hidden": [32, 32],
            "c_cond": 32,
            "nhead": [2, 2],
            "blocks": [[2, 2], [2, 2]],
            "c_clip_text": 8,
            "c_clip_text_pooled": 8,
            "c_clip_img": 8,
        },
        {},
    ),
    dit(
        "Stable Cascade stage B",
        f"{LDM}.cascade.stage_b:StageB",
        lambda m: m(ramp(1, 4, 16, 16), TIME, ramp(1, 16, 4, 4), ramp(1, 1, 8)),
        {
            "c_hidden": [32, 32, 32, 32],
            "c_cond": 32,
            "nhead": [-1, -1, 2, 2],
            "blocks": [[1, 1, 2, 1], [1, 2, 1, 1]],
            "c_clip": 8,
        },
        {},
    ),
    dit(
        "Kandinsky 5",
        f"{LDM}.kandinsky5.model:Kandinsky5",
        lambda m: m(CLIP, TIME, TEXT, ramp(1, 8)),
        {
            "in_visual_dim": 4,
            "out_visual_dim": 4,
            "visual_embed_dim": 16,
            "in_text_dim": 8,
            "in_text_dim2": 8,
            "time_dim": 16,
            "model_dim": 32,
            "ff_dim": 64,
            "num_visual_blocks": 3,
            "axes_dims": (4, 6, 6),
        },
        {},
    ),
]
