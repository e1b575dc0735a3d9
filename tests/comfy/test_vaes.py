"""A VAE is named, and so placed, by what it is for. The VAEs are ComfyUI's own, without the bytes of their weights."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any
from unittest import mock

import comfy.sd
import graphs
import models
import pytest
import torch
from graphs import Graph, node
from placing import SOURCE

from offload_runtime.adapter import Placements, apply_policy
from offload_runtime.policy import NOT_SAID, Policy, VaeUse

LTX_SIZES = {
    "ch": 32,
    "out_ch": 2,
    "num_res_blocks": 1,
    "attn_resolutions": [],
    "in_channels": 2,
    "resolution": 256,
}
LTX_SIZES |= {"z_channels": 8, "norm_type": "pixel", "causality_axis": "height"}
LTX_AUDIO = {
    "config": {
        "audio_vae": {"model": {"params": {"ddconfig": LTX_SIZES}}},
        "vocoder": {"output_sample_rate": 24000},
    }
}
BRANCHES: dict[str, tuple[str, dict[str, tuple[int, ...]]]] = {
    "Stable Audio": ("audio_vae", {"decoder.layers.1.layers.0.beta": (1,)}),
    "Stable Audio 3": ("audio_vae", {"decoder.layers.3.transformers.0.pre_norm.alpha": (1,)}),
    "ACE-Step": ("audio_vae", {"vocoder.backbone.channel_layers.0.0.bias": (1,)}),
    "MMAudio": ("audio_vae", {"vocoder.activation_post.downsample.lowpass.filter": (1,)}),
    "LTX audio": ("audio_vae", {"vocoder.resblocks.0.convs1.0.weight": (1,)}),
    "MiniMax-H3 audio": ("audio_vae", {"pre_block.attn.zero_k_bias": (1,)}),
    "MiniMax Music 3": ("audio_vae", {"dec_in_proj.weight": (1,), "decoder.model.0.weight_g": (1,)}),
    "Flux": ("vae", {"decoder.conv_in.weight": (512, 16, 3, 3)}),
    "TAESD": ("vae", {"taesd_decoder.1.weight": (64, 4, 3, 3)}),
    "pixel space": ("vae", {"pixel_space_vae": (1,)}),
    "HunyuanImage 2.1": ("vae", {"decoder.conv_in.weight": (1024, 64, 3, 3)}),
    "HunyuanImage refiner": ("vae", {"decoder.conv_in.weight": (1024, 32, 3, 3, 3)}),
    "Mage": ("vae", {"student.dconv_encoder.proj_out.weight": (1,)}),
    "Hunyuan3D": ("vae", {"geo_decoder.cross_attn_decoder.ln_1.bias": (1,)}),
    "TripoSplat": ("vae", {"gs.base_offset_scale": (1,), "octree.out_proj.weight": (1,)}),
    "Mochi": ("video_vae", {"decoder.blocks.2.blocks.3.stack.5.weight": (1,)}),
    "LTX-Video": ("video_vae", {"decoder.up_blocks.0.res_blocks.0.conv1.conv.weight": (512, 1)}),
    "HunyuanVideo 1.5": ("video_vae", {"decoder.conv_in.conv.weight": (1024, 32, 3, 3, 3)}),
    "HunyuanVideo": (
        "video_vae",
        {"decoder.conv_in.conv.weight": (512, 16, 3, 3, 3), "post_quant_conv.weight": (16, 16, 1, 1, 1)},
    ),
    "Cosmos": ("video_vae", {"decoder.unpatcher3d.wavelets": (1,)}),
    "Wan 2.2": (
        "video_vae",
        {
            "decoder.middle.0.residual.0.gamma": (1,),
            "decoder.upsamples.0.upsamples.0.residual.2.weight": (1,),
        },
    ),
    "MiniMax-H3": (
        "video_vae",
        {"decoder.transformer_blocks.0.scale1": (1,), "encoder.down.5.block.0.conv1.weight": (1,)},
    ),
    "Wan 2.1": (
        "shared",
        {
            "decoder.middle.0.residual.0.gamma": (1,),
            "decoder.head.0.gamma": (96, 1, 1, 1),
            "decoder.head.2.weight": (3, 96, 3, 3, 3),
            "encoder.conv1.weight": (96, 3, 3, 3, 3),
        },
    ),
    "TAEW": ("shared", {"decoder.22.bias": (3,), "decoder.1.weight": (256, 16, 3, 3)}),
    "SeedVR2": ("shared", {"decoder.up_blocks.2.upsamplers.0.upscale_conv.weight": (1,)}),
}
"""Family → what its VAE is for, and the weights by which ComfyUI knows it."""
READS_VALUES = ("ACE-Step", "Cosmos")
AUDIO = [family for family, (purpose, _) in BRANCHES.items() if purpose == "audio_vae"]
SHARED = [family for family, (purpose, _) in BRANCHES.items() if purpose == "shared"]

IMAGE, SILENT, FILM, HINTS = VaeUse(1, False), VaeUse(None, False), VaeUse(81, False), VaeUse(None, True)


def vae(family: str) -> Any:
    """Make a VAE as ComfyUI's loader does; skips where this ComfyUI does not know it."""
    _, weights = BRANCHES[family]
    keys = [f'"{name}" in sd' in _SOURCE or f"'{name}' in sd" in _SOURCE for name in weights]
    if not any(keys):
        pytest.skip("this ComfyUI does not have it")
    with (
        torch.device("cpu" if family in READS_VALUES else "meta"),
        mock.patch.object(torch.nn.Module, "load_state_dict", return_value=([], [])),
    ):
        made = comfy.sd.VAE(
            {key: torch.empty(shape) for key, shape in weights.items()},
            metadata=LTX_AUDIO if family == "LTX audio" else None,
        )
    return made


_SOURCE = inspect.getsource(comfy.sd.VAE.__init__)


def placed(value: Any, policy: Policy | None = None, use: VaeUse = NOT_SAID, model: Any = None) -> Any:
    """Place a VAE; returns the placed copy and its row."""
    objects = {"vae": value} if model is None else {"model": model, "vae": value}
    out, placements = apply_policy(policy or Policy(), objects, {}, Placements(), vae_use=use)
    return SimpleNamespace(vae=out["vae"], row=placements.report().rows[-1])


def name(value: Any, use: VaeUse = NOT_SAID, model: Any = None) -> str:
    return str(placed(value, use=use, model=model).row.component)


@pytest.mark.parametrize("use", [NOT_SAID, SILENT, HINTS])
@pytest.mark.parametrize("family", [family for family in BRANCHES if family not in SHARED])
def test_what_only_serves_one_purpose_is_named_for_it(family: str, use: VaeUse) -> None:
    assert name(vae(family), use) == BRANCHES[family][0]


@pytest.mark.parametrize("family", AUDIO)
def test_a_policy_for_audio_hits_every_audio_vae(family: str) -> None:
    by_name = Policy.for_component(SOURCE, "audio_vae", placement="cpu")
    others = Policy.for_component(SOURCE, "vae", placement="cpu")
    assert placed(vae(family), by_name).row.asked == "cpu"
    assert placed(vae(family), others).row.asked == "auto"


@pytest.mark.parametrize(
    ("use", "expected"),
    [(IMAGE, "vae"), (SILENT, "vae"), (FILM, "video_vae"), (HINTS, "video_vae"), (NOT_SAID, "video_vae")],
)
@pytest.mark.parametrize("family", SHARED)
def test_what_images_and_video_share_is_named_for_its_use(family: str, use: VaeUse, expected: str) -> None:
    assert name(vae(family), use) == expected


def test_a_video_vae_that_makes_one_frame_makes_a_picture() -> None:
    assert name(vae("HunyuanVideo"), IMAGE) == "vae"


def test_a_diffusion_model_of_wan_makes_video_unless_the_prompt_says_otherwise() -> None:
    model = models.diffusion_model()
    assert name(vae("Wan 2.1"), SILENT, model) == "vae"
    model.model.__class__ = type("WAN21_Vace", (type(model.model),), {})
    assert name(vae("Wan 2.1"), SILENT, model) == "video_vae"
    assert name(vae("Wan 2.1"), IMAGE, model) == "vae"


def small_wan() -> comfy.sd.VAE:
    """A VAE of Wan's class that decodes and encodes in milliseconds."""
    from comfy.ldm.wan.vae import WanVAE

    model = WanVAE(
        dim=8, z_dim=16, dim_mult=[1, 2, 4, 4], num_res_blocks=2, attn_scales=[],
        temperal_downsample=[False, True, True], dropout=0.0,
    )  # fmt: skip
    models.seed(model)
    return comfy.sd.VAE(sd=model.state_dict(), dtype=torch.float32)


def latent(frames: int) -> torch.Tensor:
    return torch.zeros(1, 16, frames, 2, 2)


@torch.inference_mode()
@pytest.mark.parametrize("again", [False, True], ids=["first loader", "second loader"])
def test_one_use_ends_the_guess(again: bool) -> None:
    loaded = small_wan()
    copy = placed(placed(loaded).vae if again else loaded).vae
    assert name(loaded) == "video_vae"
    picture = copy.decode(latent(1))
    assert name(loaded) == name(copy) == "vae"
    assert name(loaded, FILM) == "video_vae"  # which this prompt says of itself
    copy.decode_tiled(latent(3), tile_x=2, tile_y=2, overlap=0)
    assert name(loaded, SILENT) == "video_vae"
    copy.encode(picture[0])  # the first frame of a film is no picture
    assert name(loaded, SILENT) == "video_vae"


@torch.inference_mode()
def test_an_encode_counts_before_the_first_decode() -> None:
    loaded = small_wan()
    copy = placed(loaded).vae
    copy.encode(torch.zeros(5, 16, 16, 3))
    assert name(loaded, SILENT) == "video_vae"


@torch.inference_mode()
def test_what_is_noted_changes_nothing() -> None:
    loaded = small_wan()
    copy = placed(loaded).vae
    assert torch.equal(copy.decode(latent(2)), loaded.decode(latent(2)))
    shape = latent(2).shape
    assert copy.memory_used_decode(shape, torch.float32) == loaded.memory_used_decode(shape, torch.float32)
    assert inspect.isfunction(loaded.memory_used_decode)  # the input stays as it was


class SmallWan:
    """A loader of the VAE that image and video models share."""

    RETURN_TYPES = ("VAE",)
    FUNCTION = "run"
    CATEGORY = "test"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {}}

    def run(self) -> tuple[Any]:
        return (small_wan(),)


@pytest.mark.parametrize(
    ("kind", "inputs", "expected"),
    [
        ("EmptySD3LatentImage", {}, "vae"),
        ("EmptyHunyuanLatentVideo", {"length": 1}, "vae"),
        ("EmptyHunyuanLatentVideo", {"length": 33}, "video_vae"),
    ],
)
def test_the_loader_reads_the_prompt(
    kind: str, inputs: dict[str, Any], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import nodes as core

    graphs.register()
    for name in ("SmallWan", kind):  # what does not lead to the report does not run
        monkeypatch.setitem(core.NODE_CLASS_MAPPINGS, name, SmallWan)
    graph = Graph()
    graph.run(
        {
            "1": {"class_type": "SmallWan", "inputs": {}},
            "2": node("Loader", vae=["1", 0]),
            "3": node("PlacementReport", placements=["2", 4]),
            "4": {"class_type": kind, "inputs": {"width": 64, "height": 64, "batch_size": 1, **inputs}},
            "5": {"class_type": "VAEDecode", "inputs": {"samples": ["4", 0], "vae": ["2", 2]}},
        }
    )
    assert f"{expected} " in graph.ui("3")["text"][0]
    assert ("video_vae" in graph.ui("3")["text"][0]) == (expected == "video_vae")
