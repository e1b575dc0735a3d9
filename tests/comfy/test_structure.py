"""The layers that are found are those that are really called."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import comfy.ops
import models
import pytest
import torch

from offload_runtime.adapter.structure import find_stacks


def mmdit() -> tuple[torch.nn.Module, Callable[[torch.nn.Module], object]]:
    from comfy.ldm.modules.diffusionmodules.mmdit import MMDiT

    model = MMDiT(
        input_size=None,
        in_channels=4,
        depth=2,
        adm_in_channels=16,
        context_embedder_config={
            "target": "torch.nn.Linear",
            "params": {"in_features": 8, "out_features": 128},
        },
        pos_embed_max_size=16,
        num_patches=256,
        operations=comfy.ops.manual_cast,
    )
    latent, pooled = torch.randn(1, 4, 8, 8), torch.randn(1, 16)
    return model, lambda m: m(latent, torch.ones(1), context=torch.randn(1, 3, 8), y=pooled)


def unet() -> tuple[torch.nn.Module, Callable[[torch.nn.Module], object]]:
    from comfy.ldm.modules.diffusionmodules.openaimodel import UNetModel

    model = UNetModel(
        image_size=8,
        in_channels=4,
        model_channels=32,
        out_channels=4,
        num_res_blocks=[1, 1],
        channel_mult=(1, 2),
        num_heads=2,
        use_spatial_transformer=True,
        transformer_depth=[1, 1],
        transformer_depth_output=[1, 1, 1, 1],
        transformer_depth_middle=1,
        context_dim=8,
        legacy=False,
        dtype=torch.float32,
        operations=comfy.ops.manual_cast,
    )
    return model, lambda m: m(torch.randn(1, 4, 8, 8), torch.ones(1), context=torch.randn(1, 3, 8))


def wan_vae() -> tuple[torch.nn.Module, Callable[[torch.nn.Module], object]]:
    from comfy.ldm.wan.vae import WanVAE

    model = WanVAE(
        dim=16,
        z_dim=4,
        dim_mult=[1, 2, 4, 4],
        num_res_blocks=1,
        attn_scales=[],
        temperal_downsample=[False, True, True],
        dropout=0.0,
    )
    return model, lambda m: m.decode(m.encode(torch.randn(1, 3, 5, 32, 32)))


def kl_vae() -> tuple[torch.nn.Module, Callable[[torch.nn.Module], object]]:
    model = models.vae().first_stage_model
    return model, lambda m: m.decode(m.encode(torch.randn(1, 3, 32, 32)))


@pytest.mark.parametrize(("make", "share"), [(mmdit, 0.8), (unet, 0.9), (wan_vae, 0.9), (kl_vae, 0.9)])
def test_every_layer_found_is_called_and_they_hold_most_of_the_weights(
    make: Callable[[], tuple[torch.nn.Module, Callable[[torch.nn.Module], object]]], share: float
) -> None:
    model, run = make()
    models.seed(model)
    root = torch.nn.Module()
    root.inner = model
    layers = [layer for stack in find_stacks(root) for layer in stack.layers]
    calls: Counter[str] = Counter()
    for layer in layers:
        layer.module.register_forward_pre_hook(lambda module, args, name=layer.name: calls.update([name]))
    with torch.inference_mode():
        run(model)
    idle = [layer.name for layer in layers if not calls[layer.name]]
    assert not idle
    total = sum(p.nbytes for p in model.parameters())
    assert sum(layer.bytes for layer in layers) >= share * total
    assert len({id(p) for layer in layers for p in layer.module.parameters()}) == sum(
        len(list(layer.module.parameters())) for layer in layers
    ), "no weight belongs to two layers"


def test_encoders_and_their_layers_are_found_by_name() -> None:
    for family, name in (
        ("clip", "clip_l.transformer.text_model.encoder.layers"),
        ("t5", "clip_l.transformer.encoder.block"),
    ):
        stacks = find_stacks(models.FAMILIES[family].make().cond_stage_model)
        assert [(stack.name, len(stack.layers)) for stack in stacks] == [(name, 3)]


def test_a_model_without_repeated_layers_has_no_stacks() -> None:
    assert (
        find_stacks(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU(), torch.nn.Linear(2, 2))) == ()
    )
