"""The convolutional decoder of the usual image VAE: 49.5 M parameters, eight times up, to 1024 x 1024."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional


class Residual(nn.Module):
    """Two convolutions, each after norm and SiLU."""

    def __init__(self, channels: int, out: int, ops: Any) -> None:
        super().__init__()
        self.norm1, self.norm2 = ops.GroupNorm(32, channels), ops.GroupNorm(32, out)
        self.conv1 = ops.Conv2d(channels, out, 3, padding=1)
        self.conv2 = ops.Conv2d(out, out, 3, padding=1)
        self.skip = ops.Conv2d(channels, out, 1) if channels != out else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.conv1(functional.silu(self.norm1(x)))
        h = self.conv2(functional.silu(self.norm2(h)))
        return h + (x if self.skip is None else self.skip(x))


class Attention(nn.Module):
    """One head over all positions."""

    def __init__(self, channels: int, ops: Any) -> None:
        super().__init__()
        self.norm = ops.GroupNorm(32, channels)
        self.q, self.k, self.v, self.o = (ops.Conv2d(channels, channels, 1) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        q, k, v = (layer(h).flatten(2).transpose(1, 2).unsqueeze(1) for layer in (self.q, self.k, self.v))
        h = functional.scaled_dot_product_attention(q, k, v)
        return x + self.o(h.squeeze(1).transpose(1, 2).reshape(x.shape))


class Upsample(nn.Module):
    def __init__(self, channels: int, ops: Any) -> None:
        super().__init__()
        self.conv = ops.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(functional.interpolate(x, scale_factor=2.0, mode="nearest"))


class Decoder(nn.Module):
    """Latents to pixels: a middle, and a stage for each resolution."""

    def __init__(self, ops: Any) -> None:
        super().__init__()
        stages = [nn.Sequential(Residual(512, 512, ops), Attention(512, ops), Residual(512, 512, ops))]
        channels = 512
        for level, out in enumerate((512, 512, 256, 128)):
            units: list[nn.Module] = [Residual(channels if i == 0 else out, out, ops) for i in range(3)]
            channels = out
            if level < 3:
                units.append(Upsample(out, ops))
            stages.append(nn.Sequential(*units))
        self.conv_in = ops.Conv2d(4, 512, 3, padding=1)
        self.blocks = nn.ModuleList(stages)
        self.norm = ops.GroupNorm(32, 128)
        self.conv_out = ops.Conv2d(128, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv_in(x)
        for block in self.blocks:
            x = block(x)
        return self.conv_out(functional.silu(self.norm(x)))

    def sample(self, device: torch.device) -> torch.Tensor:
        """A latent to decode."""
        return torch.zeros(1, 4, 128, 128, dtype=self.conv_in.weight.dtype, device=device)
