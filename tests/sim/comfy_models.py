"""Models with seeded random weights, built through ComfyUI's own loaders. No weights are downloaded."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from .comfyui import ComfyUI

CPU = torch.device("cpu")


def seeded(
    named: Iterable[tuple[str, torch.Tensor]], dtype: torch.dtype | None = None
) -> dict[str, torch.Tensor]:
    """Small random values of the given shapes; scales of norms near one, so that deep models stay finite."""
    generator = torch.Generator().manual_seed(20)
    state = {}
    for name, like in named:
        if not like.is_floating_point():
            state[name] = torch.arange(like.numel()).view(like.shape).to(like.dtype)
            continue
        values = torch.randn(like.shape, generator=generator) * 0.02
        if like.dim() == 1 and name.endswith(("weight", "gamma")):
            values += 1
        if name.endswith("gamma"):
            values = values.abs() + 0.9
        state[name] = values.to(dtype or like.dtype)
    return state


def _placed(device: torch.device | None) -> dict[str, Any]:
    """Options that keep a text encoder on one device; the card, loaded by ComfyUI, when None."""
    if device is None:
        return {"initial_device": CPU}
    return {"load_device": device, "offload_device": device, "initial_device": device}


#: A narrow model with wide feed-forwards: small enough for a CPU, and still several times its token table,
#: which ComfyUI loads first or not at all.
NARROW_CLIP = {
    "hidden_size": 128,
    "num_attention_heads": 4,
    "intermediate_size": 16384,
    "num_hidden_layers": 8,
}
NARROW_T5 = {"d_model": 128, "d_kv": 32, "num_heads": 4, "d_ff": 16384, "num_layers": 8}


def clip_l(
    comfy: ComfyUI, device: torch.device | None = None, config: Any = NARROW_CLIP, **options: Any
) -> Any:
    """The text encoder of Stable Diffusion 1: narrow, or in its real geometry with ``config={}``."""
    from comfy import sd1_clip

    return _text_encoder(
        comfy, sd1_clip.SD1ClipModel, sd1_clip.SD1Tokenizer, device, "clip_l", config, options
    )


def t5_base(
    comfy: ComfyUI, device: torch.device | None = None, config: Any = NARROW_T5, **options: Any
) -> Any:
    """T5-base, as Stable Audio uses it: narrow, or in its real geometry with ``config={}``."""
    from comfy.text_encoders import sa_t5

    return _text_encoder(comfy, sa_t5.SAT5Model, sa_t5.SAT5Tokenizer, device, "t5base", config, options)


def _text_encoder(
    comfy: ComfyUI,
    model: type,
    tokenizer: type,
    device: torch.device | None,
    name: str,
    config: dict[str, Any],
    options: dict[str, Any],
) -> Any:
    target = type("Target", (), {"params": {}, "clip": model, "tokenizer": tokenizer})
    model_options = {**_placed(device), "model_name": name, f"{name}_model_config": config, **options}
    legacy = {"disable_dynamic": True} if model_options.pop("disable_dynamic", False) else {}
    clip = comfy.sd.CLIP(target, embedding_directory=None, model_options=model_options, **legacy)
    dtype = comfy.mm.text_encoder_dtype(clip.patcher.load_device)
    load_weights(comfy, clip.patcher, lambda: model(device=CPU, dtype=dtype, model_options=model_options))
    return clip


def load_weights(comfy: ComfyUI, patcher: Any, twin: Callable[[], torch.nn.Module]) -> None:
    """Give a patcher's model its seeded weights.

    With dynamic VRAM on, ComfyUI's layers are born without parameters, so names and shapes come from a
    ``twin`` that was made with it off.
    """
    with comfy.dynamic_off():
        shapes = [(name, value.detach()) for name, value in twin().state_dict().items()]
    dynamic = getattr(patcher, "is_dynamic", lambda: False)()
    options = {"assign": True} if dynamic or _lacks_parameters(patcher.model) else {}
    patcher.model.load_state_dict(seeded(shapes), strict=False, **options)


def _lacks_parameters(model: torch.nn.Module) -> bool:
    return any(getattr(m, "weight", 0) is None and hasattr(m, "in_features") for m in model.modules())


def kl_vae(comfy: ComfyUI, device: torch.device | None = None) -> Any:
    """A narrow AutoencoderKL of the usual depth (8 x), so that it runs on a CPU in a second."""
    ddconfig = {
        "double_z": True, "z_channels": 4, "resolution": 256, "in_channels": 3, "out_ch": 3, "ch": 32,
        "ch_mult": [1, 1, 2, 2], "num_res_blocks": 1, "attn_resolutions": [], "dropout": 0.0,
    }  # fmt: skip
    from comfy.ldm.models.autoencoder import AutoencoderKL

    with comfy.dynamic_off():
        state = seeded(AutoencoderKL(ddconfig=ddconfig, embed_dim=4).state_dict().items())
    config = {"params": {"ddconfig": ddconfig, "embed_dim": 4}}
    return comfy.sd.VAE(sd=state, device=device, config=config, dtype=torch.float32)


def wan_vae(comfy: ComfyUI, device: torch.device | None = None) -> Any:
    """The causal video VAE of Wan 2.1, narrow. It runs its layers once per latent frame."""
    from comfy.ldm.wan.vae import WanVAE

    model = WanVAE(
        dim=32, z_dim=16, dim_mult=[1, 2, 4, 4], num_res_blocks=2, attn_scales=[],
        temperal_downsample=[False, True, True], dropout=0.0,
    )  # fmt: skip
    state = seeded(model.state_dict().items())
    return comfy.sd.VAE(sd=state, device=device, dtype=torch.float32)


def vision(comfy: ComfyUI, config_path: str) -> Any:
    """A CLIP vision tower as the JSON file says."""
    model = comfy.clip_vision.ClipVisionModel(config_path)
    load_weights(comfy, model.patcher, lambda: comfy.clip_vision.ClipVisionModel(config_path).model)
    return model


VISION_CONFIG = {
    "attention_dropout": 0.0, "dropout": 0.0, "hidden_act": "quick_gelu", "hidden_size": 128,
    "image_size": 224,
    "initializer_factor": 1.0, "initializer_range": 0.02, "intermediate_size": 512, "layer_norm_eps": 1e-05,
    "model_type": "clip_vision_model", "num_attention_heads": 4, "num_channels": 3, "num_hidden_layers": 6,
    "patch_size": 16, "projection_dim": 64, "torch_dtype": "float32",
}  # fmt: skip


def sd3(comfy: ComfyUI, **options: Any) -> Any:
    """An SD3 MMDiT of two blocks (2.4 M parameters); returns ComfyUI's model patcher."""
    from comfy.ldm.modules.diffusionmodules.mmdit import OpenAISignatureMMDITWrapper

    context = {"target": "torch.nn.Linear", "params": {"in_features": 4096, "out_features": 128}}
    with comfy.dynamic_off():
        model = OpenAISignatureMMDITWrapper(
            input_size=None, in_channels=16, depth=2, adm_in_channels=64, context_embedder_config=context,
            num_patches=1024, pos_embed_max_size=32, operations=comfy.ops.disable_weight_init,
            dtype=torch.float32, device=CPU,
        )  # fmt: skip
    state = seeded(model.state_dict().items())
    return comfy.sd.load_diffusion_model_state_dict(state, model_options={"dtype": torch.float32, **options})


def encode(clip: Any, text: str = "a (red:1.2) fox on a lake") -> tuple[torch.Tensor, Any]:
    """Condition and pooled output, as a text encode node gets them."""
    with torch.inference_mode():
        return clip.encode_from_tokens(clip.tokenize(text), return_pooled=True)


def sample(comfy: ComfyUI, model: Any, steps: int = 2, hooks: Any = None) -> torch.Tensor:
    """A latent sampled by Euler steps with guidance; ``hooks`` go to the positive condition."""
    generator = torch.Generator().manual_seed(5)
    conditions = [
        [
            [
                torch.randn(1, 8, 4096, generator=generator),
                {"pooled_output": torch.randn(1, 64, generator=generator)},
            ]
        ]
        for _ in range(2)
    ]
    if hooks is not None:
        conditions[0][0][1]["hooks"] = hooks
    latent = torch.zeros(1, 16, 8, 8)
    noise = torch.randn(latent.shape, generator=generator)
    with torch.inference_mode():
        return comfy.sample.sample(
            model,
            noise,
            steps,
            4.0,
            "euler",
            "simple",
            conditions[0],
            conditions[1],
            latent,
            disable_pbar=True,
            seed=1,
        )
