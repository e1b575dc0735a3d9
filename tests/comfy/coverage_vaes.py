"""VAEs of ComfyUI, tiny."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import torch
from coverage_check import Case, Shrink, all_of, ramp, smaller
from torch import nn

LDM = "comfy.ldm"
Sizes = dict[str, Any]


def vae(
    family: str,
    needs: str,
    run: Callable[[Any], Any],
    tiny: Sizes | None = None,
    real: Sizes | None = None,
    shrink: Shrink = list,
    real_device: str = "meta",
    **more: Any,
) -> Case:
    """Describe a VAE by the arguments that make it tiny, and those that ComfyUI makes it with.

    Args:
        real_device: where the real one is made, for a class that reads values while it is made.
    """
    module, name = needs.split(":")

    def build(sizes: Sizes) -> nn.Module:
        made: nn.Module = getattr(importlib.import_module(module), name)(**sizes)
        return made

    def make() -> nn.Module:
        with all_of(shrink()):
            return build(tiny or {})

    def make_real() -> nn.Module:
        with torch.device(real_device):
            return build(real or {})

    return Case("vae", family, needs, make, run, make_real, **more)


def both(latent: Sequence[int], picture: Sequence[int]) -> Callable[[Any], Any]:
    """Decode a latent of one shape, and encode pixels of another."""
    return lambda model: [model.decode(ramp(*latent)), model.encode(ramp(*picture))]


KL = {"double_z": True, "z_channels": 4, "resolution": 256, "in_channels": 3, "out_ch": 3, "ch": 128}
KL |= {"ch_mult": [1, 2, 4, 4], "num_res_blocks": 2, "attn_resolutions": [], "dropout": 0.0}
SMALL = {"ch": 32, "num_res_blocks": 1}
IMAGE = both((1, 4, 8, 8), (1, 3, 64, 64))


def engine(
    encoder: str, decoder: str, sizes: Sizes, more: Sizes | None = None, kind: str = "DiagonalGaussian"
) -> Sizes:
    """Return the arguments of an `AutoencodingEngine`."""
    return {
        "regularizer_config": {"target": f"comfy.ldm.models.autoencoder.{kind}Regularizer"},
        "encoder_config": {"target": f"comfy.ldm.{encoder}", "params": dict(sizes)},
        "decoder_config": {"target": f"comfy.ldm.{decoder}", "params": sizes | (more or {})},
    }


PLAIN = ("modules.diffusionmodules.model.Encoder", "modules.diffusionmodules.model.Decoder")
VIDEO = ("modules.diffusionmodules.model.Encoder", "modules.temporal_ae.VideoDecoder")
SVD = {"video_kernel_size": [3, 1, 1], "alpha": 0.0}
HUNYUAN = {"in_channels": 3, "out_channels": 3, "num_res_blocks": 2, "downsample_match_channel": True}
HUNYUAN |= {"upsample_match_channel": True}
HY_IMAGE = HUNYUAN | {
    "block_out_channels": [128, 256, 512, 512, 1024, 1024],
    "ffactor_spatial": 32,
    "z_channels": 64,
}
HY_VIDEO = HUNYUAN | {"block_out_channels": [128, 256, 512, 1024, 1024], "ffactor_spatial": 16}
HY_VIDEO |= {"ffactor_temporal": 4, "z_channels": 32}
REFINER = HY_VIDEO | {"refiner_vae": False}
NARROW = {"block_out_channels": [32, 32, 64, 64, 64], "z_channels": 8, "num_res_blocks": 1}
WAN = {"z_dim": 16, "dim_mult": [1, 2, 4, 4], "num_res_blocks": 2, "attn_scales": []}
WAN |= {"temperal_downsample": [False, True, True], "dropout": 0.0}
COSMOS = {"z_channels": 16, "latent_channels": 16, "z_factor": 1, "resolution": 1024, "in_channels": 3}
COSMOS |= {"out_channels": 3, "channels": 128, "channels_mult": [2, 4, 4], "num_res_blocks": 2}
COSMOS |= {"attn_resolutions": [32], "dropout": 0.0, "patch_size": 4, "num_groups": 1}
COSMOS |= {"temporal_compression": 8, "spacial_compression": 8}

AE = f"{LDM}.models.autoencoder:AutoencodingEngine"
AKL = f"{LDM}.models.autoencoder:AutoencoderKL"
REF = ("hunyuan_video.vae_refiner.Encoder", "hunyuan_video.vae_refiner.Decoder")
HYI = ("hunyuan_video.vae.Encoder", "hunyuan_video.vae.Decoder")
LTX_TINY = {
    "dims": 3,
    "in_channels": 3,
    "out_channels": 3,
    "latent_channels": 128,
    "encoder_base_channels": 16,
    "decoder_base_channels": 16,
    "encoder_blocks": [
        ["res_x", {"num_layers": 2}],
        ["compress_space_res", {"multiplier": 2}],
        ["res_x", {"num_layers": 2}],
        ["compress_time_res", {"multiplier": 2}],
        ["res_x", {"num_layers": 1}],
        ["compress_all_res", {"multiplier": 2}],
        ["res_x", {"num_layers": 1}],
    ],
    "decoder_blocks": [
        ["res_x", {"num_layers": 2, "inject_noise": True}],
        ["compress_all", {"residual": True, "multiplier": 2}],
        ["res_x", {"num_layers": 2, "inject_noise": True}],
        ["compress_all", {"residual": True, "multiplier": 2}],
        ["res_x", {"num_layers": 1}],
    ],
    "norm_layer": "pixel_norm",
    "patch_size": 4,
    "latent_log_var": "uniform",
    "timestep_conditioning": True,
}


def mmaudio() -> list[AbstractContextManager[Any]]:
    """Shrink MMAudio, which only takes its sampling rate."""
    module = importlib.import_module(f"{LDM}.mmaudio.vae.autoencoder")
    vocoder = module.BigVGANVocoder
    narrow = mock.patch.object(
        module, "BigVGANVocoder", lambda sizes: vocoder(sizes | {"upsample_initial_channel": 64})
    )
    return [narrow, smaller(f"{LDM}.mmaudio.vae.vae", "VAE", hidden_dim=32)]


LTX = f"{LDM}.lightricks.vae.causal_video_autoencoder"
CASES = [
    vae(
        "SD 1.x, SDXL",
        AKL,
        IMAGE,
        {"ddconfig": KL | SMALL, "embed_dim": 4},
        {"ddconfig": dict(KL), "embed_dim": 4},
    ),
    vae("SD3, Flux, Z-Image", AE, IMAGE, engine(*PLAIN, KL | SMALL), engine(*PLAIN, KL | {"z_channels": 16})),
    vae(
        "Flux 2",
        AKL,
        both((1, 16, 4, 4), (1, 3, 64, 64)),
        {"ddconfig": KL | SMALL | {"batch_norm_latent": True}, "embed_dim": 4},
        {"ddconfig": KL | {"z_channels": 32, "batch_norm_latent": True}, "embed_dim": 32},
    ),
    vae("Stable Video Diffusion", AE, IMAGE, engine(*VIDEO, KL | SMALL, SVD), engine(*VIDEO, dict(KL), SVD)),
    vae(
        "HunyuanVideo",
        AKL,
        both((1, 4, 3, 2, 2), (1, 3, 5, 16, 16)),
        {"ddconfig": KL | SMALL | {"conv3d": True, "time_compress": 4}, "embed_dim": 4},
        {"ddconfig": KL | {"z_channels": 16, "conv3d": True, "time_compress": 4}, "embed_dim": 16},
    ),
    vae(
        "HunyuanImage 2.1",
        AE,
        both((1, 8, 4, 4), (1, 3, 64, 64)),
        engine(*HYI, HY_IMAGE | {**NARROW, "block_out_channels": [32, 32, 32, 64, 64, 64]}),
        engine(*HYI, HY_IMAGE),
    ),
    vae(
        "HunyuanImage 2.1 refiner",
        AE,
        both((1, 8, 2, 2, 2), (1, 3, 8, 32, 32)),
        engine(*REF, REFINER | NARROW),
        engine(*REF, REFINER),
    ),
    vae(
        "HunyuanVideo 1.5",
        AE,
        both((1, 8, 3, 2, 2), (1, 3, 5, 32, 32)),
        engine(*REF, HY_VIDEO | NARROW, kind="Empty"),
        engine(*REF, HY_VIDEO, kind="Empty"),
    ),
    vae(
        "Wan 2.1, Qwen-Image",
        f"{LDM}.wan.vae:WanVAE",
        both((1, 4, 5, 4, 4), (1, 3, 9, 32, 32)),
        WAN | {"dim": 8, "z_dim": 4, "num_res_blocks": 1},
        WAN | {"dim": 96},
    ),
    vae(
        "Wan 2.2",
        f"{LDM}.wan.vae2_2:WanVAE",
        both((1, 4, 3, 4, 4), (1, 3, 5, 64, 64)),
        WAN | {"dim": 8, "dec_dim": 8, "z_dim": 4, "num_res_blocks": 1},
        WAN | {"dim": 160, "z_dim": 48},
    ),
    vae(
        "LTX-Video",
        f"{LDM}.lightricks.vae.causal_video_autoencoder:VideoVAE",
        both((1, 128, 2, 4, 4), (1, 3, 9, 64, 64)),
        {"config": LTX_TINY},
        {"version": 2},
        shrink=lambda: [smaller(LTX, "Encoder", base_channels=16), smaller(LTX, "Decoder", base_channels=16)],
    ),
    vae(
        "Mochi",
        f"{LDM}.genmo.vae.model:VideoVAE",
        both((1, 12, 2, 4, 4), (1, 3, 7, 32, 32)),
        shrink=lambda: [
            smaller(
                f"{LDM}.genmo.vae.model",
                "Encoder",
                base_channels=32,
                num_res_blocks=[1] * 5,
                channel_multipliers=[1, 2, 3, 4],
            ),
            smaller(
                f"{LDM}.genmo.vae.model",
                "Decoder",
                base_channels=32,
                num_res_blocks=[1] * 5,
                channel_multipliers=[1, 2, 3, 4],
            ),
        ],
    ),
    vae(
        "CogVideoX",
        f"{LDM}.cogvideo.vae:AutoencoderKLCogVideoX",
        both((1, 4, 3, 4, 4), (1, 3, 9, 32, 32)),
        {"block_out_channels": (32, 32, 32, 64), "latent_channels": 4, "layers_per_block": 1},
        reads_past=True,
    ),
    vae(
        "Cosmos tokenizer",
        f"{LDM}.cosmos.vae:CausalContinuousVideoTokenizer",
        both((1, 16, 2, 4, 4), (1, 3, 9, 64, 64)),
        COSMOS | {"channels": 16, "num_res_blocks": 1},
        COSMOS,
        real_device="cpu",
    ),
    vae(
        "MiniMax-H3",
        f"{LDM}.minimax.vae:MiniMaxH3VideoVAE",
        both((1, 24, 2, 4, 4), (1, 3, 5, 64, 64)),
        {"ch": 32, "num_res_blocks": 1},
        shrink=lambda: [
            smaller(f"{LDM}.minimax.vae", "ViT3DDecoder", num_layers=3, heads=2),
            smaller(f"{LDM}.minimax.vae", "TransformerBlock", heads=2),
        ],
    ),
    vae(
        "TAESD",
        "comfy.taesd.taesd:TAESD",
        both((1, 4, 8, 8), (1, 3, 64, 64)),
        note="a few MB: there is nothing to gain",
    ),
    vae(
        "TAEHV",
        "comfy.taesd.taehv:TAEHV",
        both((1, 16, 2, 4, 4), (1, 3, 5, 32, 32)),
        {"latent_channels": 16, "latent_format": None},
        {"latent_channels": 16, "latent_format": None},
        note="a few MB: there is nothing to gain",
    ),
    vae(
        "Stable Cascade stage A",
        f"{LDM}.cascade.stage_a:StageA",
        both((1, 4, 8, 8), (1, 3, 32, 32)),
        {"c_hidden": 32, "bottleneck_blocks": 3},
    ),
    vae(
        "Stable Cascade stage C",
        f"{LDM}.cascade.stage_c_coder:StageC_coder",
        both((1, 16, 4, 4), (1, 3, 64, 64)),
    ),
    vae(
        "Stable Audio (Oobleck)",
        f"{LDM}.audio.autoencoder:AudioOobleckVAE",
        both((1, 8, 4), (1, 2, 512)),
        {"channels": 8, "latent_dim": 8, "c_mults": [1, 2], "strides": [2, 4]},
        left_alone="out of others",
    ),
    vae(
        "pixel space",
        "comfy.pixel_space_convert:PixelspaceConversionVAE",
        both((1, 3, 8, 8), (1, 3, 8, 8)),
        left_alone="no repeated layers",
    ),
    vae(
        "Hunyuan3D 2",
        f"{LDM}.hunyuan3d.vae:ShapeVAE",
        lambda m: m.decode(ramp(1, 8, 6), octree_resolution=4, enable_pbar=False),
        {"embed_dim": 8, "width": 32, "heads": 2, "num_decoder_layers": 3, "num_encoder_layers": 2},
        idle={"encoder": "ComfyUI only decodes with it"},
    ),
    vae(
        "MMAudio",
        f"{LDM}.mmaudio.vae.autoencoder:AudioAutoencoder",
        both((1, 20, 8), (1, 2, 16000)),
        {"mode": "16k"},
        {"mode": "16k"},
        shrink=mmaudio,
    ),
    vae("Mage-VAE", f"{LDM}.mage_flow.vae:MageVAE", both((1, 128, 4, 4), (1, 3, 64, 64))),
    vae(
        "MiniMax-H3 audio",
        f"{LDM}.minimax.audio_vae:MiniMaxH3AudioVAE",
        both((1, 32, 2, 4), (1, 2, 1600)),
        {"encoder_dim": 8, "latent_dim": 64, "decoder_dim": 128},
    ),
    vae(
        "TripoSplat",
        f"{LDM}.triposplat.vae:OctreeGaussianDecoder",
        lambda m: [
            vars(g) for g in m.decode(ramp(1, 8, 16), 64, level=2, generator=torch.Generator().manual_seed(0))
        ],
        shrink=lambda: [
            smaller(
                f"{LDM}.triposplat.vae", "OctreeProbabilityFixedlenDecoder", model_channels=64, num_heads=2
            ),
            smaller(
                f"{LDM}.triposplat.vae",
                "ElasticGaussianFixedlenDecoder",
                model_channels=60,
                num_heads=2,
                num_blocks=3,
            ),
        ],
    ),
]
