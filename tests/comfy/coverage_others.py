"""What a workflow loads beside its encoders, VAE and diffusion model, tiny."""

from __future__ import annotations

from typing import Any

import torch
from coverage_check import Case, ramp
from torch import nn

UNET = {
    "image_size": 32,
    "in_channels": 4,
    "hint_channels": 3,
    "model_channels": 320,
    "num_res_blocks": [2, 2, 2, 2],
    "channel_mult": [1, 2, 4, 4],
    "num_heads": 8,
    "use_spatial_transformer": True,
    "transformer_depth": [1, 1, 1, 1, 1, 1, 0, 0],
    "transformer_depth_middle": 1,
    "context_dim": 768,
}
TINY_UNET = {**UNET, "model_channels": 32, "num_heads": 2, "context_dim": 16}
TINY_PATCH = {"num_layers": 3, "dim": 32}
TINY_GLIGEN, TINY_TEXT, BOXES = (32, 32, 64), 16, 30
GLIGEN = (320, 320, 640, 640, 1280, 1280, 1280, 1280, 1280, 1280, 640, 640, 640, 320, 320, 320)


def control_net(device: str, sizes: dict[str, Any]) -> nn.Module:
    import comfy.cldm.cldm
    import comfy.ops

    made: nn.Module = comfy.cldm.cldm.ControlNet(
        operations=comfy.ops.manual_cast, dtype=torch.float32, device=device, **sizes
    )
    return made


def control(model: Any) -> Any:
    return model(
        x=ramp(1, 4, 8, 8),
        hint=ramp(1, 3, 64, 64),
        timesteps=torch.ones(1),
        context=ramp(1, 3, TINY_UNET["context_dim"]),
    )


def qwen_patch(device: str, **sizes: Any) -> nn.Module:
    import comfy.ops
    from comfy_extras.nodes_model_patch import QwenImageBlockWiseControlNet

    with torch.device(device):
        made: nn.Module = QwenImageBlockWiseControlNet(operations=comfy.ops.manual_cast, **sizes)
    return made


def patch(model: Any) -> torch.Tensor:
    hint = model.process_input_latent_image(ramp(1, 16, 1, 4, 4).clone())
    hidden = torch.zeros_like(hint)
    for block in range(TINY_PATCH["num_layers"]):
        hidden = hidden + model.control_block(hidden, hint, block)
    return hidden


def gligen(device: str, widths: tuple[int, ...], text: int) -> nn.Module:
    import comfy.gligen

    with torch.device(device):
        blocks = [comfy.gligen.GatedSelfAttentionDense(width, text, 8, width // 8) for width in widths]
        made: nn.Module = comfy.gligen.Gligen(blocks, comfy.gligen.PositionNet(text, text), text)
    return made


def ground(model: Any) -> list[torch.Tensor]:
    boxes, masks, words = torch.zeros(1, BOXES, 4), torch.zeros(1, BOXES), torch.zeros(1, BOXES, TINY_TEXT)
    device = model.position_net(boxes, masks, words).device
    block = model.set_empty((1, 4, 8, 8), device)
    return [
        block(ramp(1, 64, width).to(device), {"transformer_index": index})
        for index, width in enumerate(TINY_GLIGEN)
    ]


CASES = [
    Case(
        kind="other model",
        family="ControlNet (SD 1.x)",
        needs="comfy.cldm.cldm:ControlNet",
        make=lambda: control_net("cpu", TINY_UNET),
        run=control,
        real=lambda: control_net("meta", UNET),
    ),
    Case(
        kind="other model",
        family="Qwen-Image model patch",
        needs="comfy_extras.nodes_model_patch:QwenImageBlockWiseControlNet",
        make=lambda: qwen_patch("cpu", **TINY_PATCH),
        run=patch,
        real=lambda: qwen_patch("meta"),
    ),
    Case(
        kind="other model",
        family="GLIGEN (SD 1.x)",
        needs="comfy.gligen:Gligen",
        make=lambda: gligen("cpu", TINY_GLIGEN, TINY_TEXT),
        run=ground,
        real=lambda: gligen("meta", GLIGEN, 768),
    ),
]
