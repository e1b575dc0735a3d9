"""Small models of what workflows load beside MODEL, CLIP, VAE and CLIP_VISION, in ComfyUI's own wrappers."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import comfy.controlnet
import comfy.model_management as mm
import comfy.model_patcher
import comfy.sd
import coverage_others as tiny
import torch
from coverage_check import seed
from spandrel import ModelLoader
from torch import nn


def patcher(model: nn.Module) -> Any:
    """Wrap a model as most loaders do."""
    seed(model)
    return comfy.model_patcher.ModelPatcher(
        model, load_device=mm.get_torch_device(), offload_device=mm.unet_offload_device()
    )


def control_net() -> Any:
    model = tiny.control_net("cpu", tiny.TINY_UNET)
    seed(model)
    return comfy.controlnet.ControlNet(
        model, load_device=mm.get_torch_device(), manual_cast_dtype=torch.float32
    )


def control(value: Any) -> torch.Tensor:
    mm.load_models_gpu(value.get_models())
    with torch.inference_mode():
        return tiny.control(value.control_model)["output"][-1].clone()


def model_patch() -> Any:
    return patcher(tiny.qwen_patch("cpu", **tiny.TINY_PATCH))


def patch(value: Any) -> torch.Tensor:
    mm.load_models_gpu([value])
    with torch.inference_mode():
        return tiny.patch(value.model).clone()


def gligen() -> Any:
    return patcher(tiny.gligen("cpu", tiny.TINY_GLIGEN, tiny.TINY_TEXT))


def ground(value: Any) -> torch.Tensor:
    mm.load_models_gpu([value])
    with torch.inference_mode():
        return tiny.ground(value.model)[0].clone()


def audio_encoder() -> Any:
    from comfy.audio_encoders.audio_encoders import AudioEncoderModel

    sizes = {"embed_dim": 64, "final_dim": 16, "num_heads": 2, "num_layers": 3}
    made = AudioEncoderModel({"model_type": "wav2vec2", **sizes})
    seed(made.model)
    return made


def listen(value: Any) -> torch.Tensor:
    with torch.inference_mode():
        heard = value.encode_audio(torch.linspace(-1, 1, 4000).reshape(1, 1, 4000), 16000)
    return heard["encoded_audio"].clone()


def latent_upscale_model() -> Any:
    from comfy.ldm.hunyuan_video.upsampler import HunyuanVideo15SRModel

    sizes = {"in_channels": 4, "out_channels": 4, "hidden_channels": 32, "num_blocks": 3}
    made = HunyuanVideo15SRModel("720p", {**sizes, "global_residual": False})
    seed(made.model)
    return made


def resample(value: Any) -> torch.Tensor:
    with torch.inference_mode():
        return value.resample_latent(torch.linspace(-1, 1, 4 * 16).reshape(1, 4, 1, 4, 4)).float().clone()


def bare_upscale_model() -> Any:
    """As ComfyUI 0.3.75 loads one."""
    network = importlib.import_module("spandrel.architectures.ESRGAN.__arch.RRDB")  # a hidden name in a class
    weights = network.RRDBNet(in_nc=3, out_nc=3, num_filters=8, num_blocks=3, scale=1).state_dict()
    made = ModelLoader().load_from_state_dict(weights).eval()
    seed(made.model)
    return made


def upscale_model() -> Any:
    """As ComfyUI 0.33 loads one."""
    made = bare_upscale_model()
    made.patcher = patcher(made.model)
    return made


def upscale(value: Any) -> torch.Tensor:
    mm.load_models_gpu([value.patcher], force_full_load=True)
    with torch.inference_mode():
        return value(torch.linspace(0, 1, 3 * 64).reshape(1, 3, 8, 8)).clone()


def t2i_adapter() -> Any:
    from comfy.t2i_adapter.adapter import Adapter_light

    model = Adapter_light(channels=[8, 8, 8, 8], nums_rb=1, cin=64)
    seed(model)
    return comfy.controlnet.T2IAdapter(model, 64, 8, "nearest-exact")


def control_lora() -> Any:
    return comfy.controlnet.ControlLora({"lora_controlnet": torch.zeros(1), "a.weight": torch.ones(4, 8)})


def style_model() -> Any:
    return comfy.sd.StyleModel(nn.Linear(8, 8))


def photomaker() -> Any:
    return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))


def face_detection_model() -> Any:
    models = {"short": nn.Linear(4, 4), "full": nn.Linear(4, 8)}
    return _Faces(models=models, patchers={name: patcher(model) for name, model in models.items()})


class _Faces(SimpleNamespace):
    __hash__ = object.__hash__


MANAGED = {
    "control_net": (control_net, control),
    "model_patch": (model_patch, patch),
    "gligen": (gligen, ground),
    "audio_encoder": (audio_encoder, listen),
    "latent_upscale_model": (latent_upscale_model, resample),
    "upscale_model": (upscale_model, upscale),
    "interp_model": (model_patch, patch),
}
"""Socket → how to make what comes in there, and how to use it."""

BARE = {
    "T2I-Adapter": ("control_net", t2i_adapter),
    "Control-LoRA": ("control_net", control_lora),
    "style model": ("style_model", style_model),
    "PhotoMaker": ("photomaker", photomaker),
    "upscaler of 0.3.75": ("upscale_model", bare_upscale_model),
    "face detection": ("face_detection_model", face_detection_model),
}
"""What has no patcher: socket, and how to make it."""
