"""Small seeded models of the real ComfyUI classes, in the real ComfyUI wrappers."""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import comfy.clip_vision
import comfy.model_management as mm
import comfy.model_patcher
import comfy.ops
import comfy.sd
import comfy.sd1_clip
import comfy.text_encoders.t5
import torch
from safetensors.torch import save_file

CLIP_CONFIG = {
    "num_hidden_layers": 3,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "max_position_embeddings": 77,
    "hidden_act": "quick_gelu",
    "vocab_size": 100,
    "projection_dim": 64,
    "eos_token_id": 1,
}
T5_CONFIG = {
    "num_layers": 3,
    "d_model": 64,
    "d_kv": 16,
    "num_heads": 4,
    "d_ff": 128,
    "dense_act_fn": "gelu_pytorch_tanh",
    "is_gated_act": True,
    "model_type": "t5",
    "vocab_size": 100,
}
VISION_CONFIG = {
    "model_type": "clip_vision_model",
    "num_hidden_layers": 3,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_channels": 3,
    "image_size": 28,
    "patch_size": 14,
    "hidden_act": "quick_gelu",
    "projection_dim": 32,
}
VAE_CONFIG = {
    "double_z": True,
    "z_channels": 4,
    "resolution": 64,
    "in_channels": 3,
    "out_ch": 3,
    "ch": 32,
    "ch_mult": [1, 2, 4],
    "num_res_blocks": 1,
    "attn_resolutions": [],
    "dropout": 0.0,
}


def seed(model: torch.nn.Module, number: int = 0) -> None:
    """Fill a model with small random weights that depend on the number only."""
    generator = torch.Generator().manual_seed(number)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.requires_grad_(False)
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.05)
        for buffer in model.buffers():
            if buffer.is_floating_point():
                buffer.fill_(0.01)
    model.eval()


def clip(family: str = "clip", number: int = 0) -> comfy.sd.CLIP:
    """Return a CLIP with a small text encoder: `clip` or `t5`."""
    load_device, offload_device = mm.text_encoder_device(), mm.text_encoder_offload_device()
    options = {"device": offload_device, "dtype": torch.float16}
    if family == "t5":
        inner = functools.partial(
            comfy.sd1_clip.SDClipModel,
            textmodel_json_config=dict(T5_CONFIG),
            model_class=comfy.text_encoders.t5.T5,
            special_tokens={"end": 1, "pad": 0},
            layer="last",
            enable_attention_masks=True,
            return_attention_masks=True,
        )
    else:
        inner = functools.partial(
            comfy.sd1_clip.SDClipModel,
            textmodel_json_config=dict(CLIP_CONFIG),
            special_tokens={"start": 2, "end": 1, "pad": 0},
        )
    result = comfy.sd.CLIP(no_init=True)
    result.cond_stage_model = comfy.sd1_clip.SD1ClipModel(clip_model=inner, **options)
    seed(result.cond_stage_model, number)
    result.patcher = _patcher(result.cond_stage_model, load_device, offload_device)
    result.patcher.is_clip = True
    result.layer_idx, result.tokenizer, result.tokenizer_options = None, None, {}
    result.use_clip_schedule, result.apply_hooks_to_conds = False, None
    return result


def encode(clip: comfy.sd.CLIP, *ids: int) -> torch.Tensor:
    """Encode token ids (3 to 99) and return the conditioning, (1, 77, channels)."""
    prompt = (5, 6, 7, *ids, 1)
    tokens = {"l": [[(i, 1.0) for i in (*prompt, *(0,) * (77 - len(prompt)))]]}
    with torch.inference_mode():
        return clip.encode_from_tokens(tokens).clone()


def vae(number: int = 0) -> comfy.sd.VAE:
    """Return a VAE with a small KL autoencoder (latents of 4 channels, 4 × smaller than the image)."""
    from comfy.ldm.models.autoencoder import AutoencoderKL

    model = AutoencoderKL(ddconfig=dict(VAE_CONFIG), embed_dim=4)
    seed(model, number)
    return comfy.sd.VAE(
        sd=model.state_dict(), config={"params": {"ddconfig": dict(VAE_CONFIG), "embed_dim": 4}}
    )


def clip_vision(number: int = 0) -> comfy.clip_vision.ClipVisionModel:
    """Return a CLIP_VISION with a small vision transformer."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "vision.json")
        config.write_text(json.dumps(VISION_CONFIG))
        result = comfy.clip_vision.ClipVisionModel(str(config))
    seed(result.model, number)
    return result


def diffusion_model(number: int = 0) -> comfy.model_patcher.ModelPatcher:
    """Return a MODEL with a small SD3 transformer of two blocks."""
    from comfy.ldm.modules.diffusionmodules.mmdit import MMDiT

    embedder = {"target": "torch.nn.Linear", "params": {"in_features": 8, "out_features": 128}}
    model = MMDiT(
        input_size=None,
        in_channels=16,
        depth=2,
        adm_in_channels=16,
        context_embedder_config=embedder,
        pos_embed_max_size=16,
        num_patches=256,
        operations=comfy.ops.manual_cast,
    )
    seed(model, number)
    return comfy.sd.load_diffusion_model_state_dict(model.state_dict())


def denoise(model: comfy.model_patcher.ModelPatcher) -> torch.Tensor:
    """Run one step of the diffusion model, (1, 16, 8, 8)."""
    mm.load_models_gpu([model])
    noise = torch.linspace(-1, 1, 16 * 64).reshape(1, 16, 8, 8)
    context, pooled = torch.linspace(-1, 1, 24).reshape(1, 3, 8), torch.linspace(-1, 1, 16).reshape(1, 16)
    with torch.inference_mode():
        return model.model.apply_model(
            noise,
            torch.ones(1),
            c_crossattn=context,
            y=pooled,
            transformer_options={"wrappers": model.wrappers},
        ).clone()


IMAGE = torch.linspace(0, 1, 64 * 64 * 3).reshape(1, 64, 64, 3)


def reconstruct(vae: comfy.sd.VAE) -> torch.Tensor:
    """Encode an image and decode it again."""
    with torch.inference_mode():
        return vae.decode(vae.encode(IMAGE)).clone()


def look(vision: comfy.clip_vision.ClipVisionModel) -> torch.Tensor:
    """Encode an image for conditioning."""
    with torch.inference_mode():
        return vision.encode_image(IMAGE)["last_hidden_state"].clone()


@dataclass(frozen=True)
class Family:
    """One kind of component: how to make one, which socket takes it, and how to use it."""

    slot: str
    make: Callable[..., Any]
    run: Callable[[Any], torch.Tensor]


FAMILIES = {
    "model": Family("model", diffusion_model, denoise),
    "clip": Family("clip", clip, encode),
    "t5": Family("clip", functools.partial(clip, "t5"), encode),
    "vae": Family("vae", vae, reconstruct),
    "clip_vision": Family("clip_vision", clip_vision, look),
}


def patcher_of(value: Any) -> Any:
    """Return the `ModelPatcher` inside a ComfyUI object; a MODEL is one itself."""
    return getattr(value, "patcher", value)


def save(model: torch.nn.Module, path: Path) -> Path:
    """Write a model's weights, as the file that it could have been loaded from."""
    save_file({name: tensor.contiguous().clone() for name, tensor in model.state_dict().items()}, path)
    return path


def _patcher(
    model: torch.nn.Module, load_device: Any, offload_device: Any
) -> comfy.model_patcher.ModelPatcher:
    return comfy.model_patcher.ModelPatcher(model, load_device=load_device, offload_device=offload_device)
