"""Released sizes of diffusion models, and one step of each without numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

_BF16 = torch.bfloat16


@dataclass(frozen=True)
class Family:
    """A diffusion model in its released size.

    Attributes:
        config: its class in `comfy.supported_models`.
        sizes: what ComfyUI reads out of its file.
        latent: shape of what it denoises.
        text: shape of what the text encoders hand on.
        cards: type of its weights → cards in GiB.
        more: name → shape of what else it is called with; a number is handed on as it is.
        audio: shape of the sound beside the pictures, if there is one.
        newer: sizes that versions with dynamic VRAM ask for, too.
    """

    config: str
    sizes: Mapping[str, Any]
    latent: tuple[int, ...]
    text: tuple[int, ...]
    cards: Mapping[str, tuple[int, ...]]
    more: Mapping[str, Any] = field(default_factory=dict)
    audio: tuple[int, ...] = ()
    newer: Mapping[str, Any] = field(default_factory=dict)

    def sizes_for(self, newer: bool) -> dict[str, Any]:
        """Return what a version of ComfyUI reads out of the file."""
        return {**self.sizes, **(self.newer if newer else {})}

    def step(self, model: torch.nn.Module, device: torch.device) -> None:
        """Call the model once, as `BaseModel.apply_model` does."""

        def tensor(shape: Any) -> Any:
            return torch.empty(shape, dtype=_BF16, device=device) if isinstance(shape, tuple) else shape

        x = tensor(self.latent)
        given = {"context": tensor(self.text)} | {name: tensor(shape) for name, shape in self.more.items()}
        model([x, tensor(self.audio)] if self.audio else x, tensor((1,)), transformer_options={}, **given)


_FLUX = {
    "image_model": "flux", "in_channels": 16, "out_channels": 16, "vec_in_dim": 768, "context_in_dim": 4096,
    "hidden_size": 3072, "mlp_ratio": 4.0, "num_heads": 24, "depth": 19, "depth_single_blocks": 38,
    "axes_dim": [16, 56, 56], "theta": 10000, "patch_size": 2, "qkv_bias": True, "guidance_embed": True,
}  # fmt: skip
_WAN = {
    "image_model": "wan2.1", "model_type": "t2v", "in_dim": 16, "out_dim": 16, "dim": 5120, "ffn_dim": 13824,
    "text_dim": 4096, "num_heads": 40, "num_layers": 40, "freq_dim": 256,
}  # fmt: skip
_ZIMAGE = {
    "image_model": "lumina2", "in_channels": 16, "dim": 3840, "n_layers": 30, "n_heads": 30, "n_kv_heads": 30,
    "qk_norm": True, "cap_feat_dim": 2560, "axes_dims": [32, 48, 48], "axes_lens": [1536, 512, 512],
    "rope_theta": 256.0, "ffn_dim_multiplier": 8 / 3, "z_image_modulation": True, "time_scale": 1000.0,
    "pad_tokens_multiple": 32,
}  # fmt: skip
_FLUX_MORE = {"y": (1, 768), "guidance": (1,)}

FAMILIES = {
    "z-image": Family(
        "Lumina2", _ZIMAGE, (1, 16, 128, 128), (1, 128, 2560), {"bf16": (8,)}, {"num_tokens": 128}
    ),
    "flux": Family(
        "Flux", _FLUX, (1, 16, 128, 128), (1, 512, 4096), {"fp8": (8,), "bf16": (12,)}, _FLUX_MORE,
        newer={"txt_ids_dims": []},
    ),
    "flux 512": Family(
        "Flux", _FLUX, (1, 16, 64, 64), (1, 512, 4096), {"bf16": (12,)}, _FLUX_MORE, newer={"txt_ids_dims": []}
    ),
    "qwen-image": Family(
        "QwenImage", {"image_model": "qwen_image", "in_channels": 64, "out_channels": 16, "num_layers": 60},
        (1, 16, 1, 164, 164), (1, 256, 3584), {"fp8": (12,), "bf16": (24,)},
    ),
    "wan 2.2 image": Family(
        "WAN21_T2V", _WAN, (1, 16, 1, 60, 104), (1, 512, 4096), {"bf16": (16,)}
    ),
    "wan 2.2 video": Family(
        "WAN21_T2V", _WAN, (1, 16, 21, 60, 104), (1, 512, 4096), {"fp8": (12,), "bf16": (16,)}
    ),
    "ltx-2": Family(
        "LTXAV", {"image_model": "ltxav"}, (1, 128, 16, 16, 24), (1, 1024, 7680), {"fp8": (12,)},
        {"attention_mask": None}, audio=(1, 8, 126, 16),
    ),
}  # fmt: skip
"""Pictures of 1024², 512² or 1312², one frame and 81 frames of 832 x 480, and 121 frames of 768 x 512 with sound."""
