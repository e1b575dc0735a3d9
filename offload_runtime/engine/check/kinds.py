"""A small stack with the kinds of layers that models have: convolutions, norms, and maps in several types."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

_REPEATS = 3
_SIDE = 8


class _Convolution(nn.Module):
    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(8, width, dtype=dtype)
        self.convolution = nn.Conv2d(width, width, 3, padding=1, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add what a convolution makes of a picture."""
        inner = x.to(self.convolution.weight.dtype)
        y: torch.Tensor = x + functional.silu(self.convolution(self.norm(inner))).to(x.dtype)
        return y


class _Map(nn.Module):
    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, dtype=dtype)
        self.up = nn.Linear(width, 4 * width, dtype=dtype)
        self.down = nn.Linear(4 * width, width, bias=False, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add what two linear maps make of each place of a picture."""
        inner = x.movedim(1, -1).to(self.up.weight.dtype)
        inner = self.down(functional.gelu(self.up(self.norm(inner))))
        y: torch.Tensor = x + inner.movedim(-1, 1).to(x.dtype)
        return y


class _Eight(nn.Module):
    """A linear map whose weight has eight bits, and is widened when it is used."""

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, width, dtype=dtype), requires_grad=False)
        self.scale = nn.Parameter(torch.empty(width, dtype=torch.float32), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add what the map makes of each place of a picture."""
        inner = x.movedim(1, -1).to(torch.bfloat16)
        inner = functional.linear(inner, self.weight.to(torch.bfloat16))
        return x + (inner.float() * self.scale).movedim(-1, 1).to(x.dtype)


_KINDS: dict[str, tuple[Callable[[int, torch.dtype], nn.Module], torch.dtype]] = {
    "fp32 convolution": (_Convolution, torch.float32),
    "fp16 convolution": (_Convolution, torch.float16),
    "fp16 linear": (_Map, torch.float16),
    "bf16 linear": (_Map, torch.bfloat16),
    "fp8 linear": (_Eight, torch.float8_e4m3fn),
}


class Kinds(NamedTuple):
    """A stack.

    Attributes:
        names: what each layer is, with its number.
        layers: the layers, on the host.
        given: what the first one is given, on the host.
        refused: kinds that the device does not compute.
    """

    names: tuple[str, ...]
    layers: nn.ModuleList
    given: torch.Tensor
    refused: tuple[str, ...]


def kinds_on(device: torch.device, width: int) -> Kinds:
    """Return a stack of those kinds that a device computes.

    Raises:
        torch.OutOfMemoryError: the device has no room for one layer.
    """
    generator = torch.Generator().manual_seed(7)
    given = torch.randn(1, width, _SIDE, _SIDE, generator=generator)
    made = {kind: _seeded(make(width, dtype), generator) for kind, (make, dtype) in _KINDS.items()}
    refused = tuple(kind for kind, layer in made.items() if not _computes(layer, given, device))
    names: list[str] = []
    layers = nn.ModuleList()
    for _ in range(_REPEATS):
        for kind in _KINDS:
            if kind not in refused:
                names.append(f"layer {len(names) + 1}, {kind}")
                layers.append(_seeded(copy.deepcopy(made[kind]), generator))
    return Kinds(tuple(names), layers, given, refused)


def _seeded(layer: nn.Module, generator: torch.Generator) -> nn.Module:
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.05)
    return layer.eval().requires_grad_(False)


def _computes(layer: nn.Module, given: torch.Tensor, device: torch.device) -> bool:
    try:
        copy.deepcopy(layer).to(device)(given.to(device)).cpu()
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError):  # what torch raises for a type that a device does not have
        return False
    return True


def run(layers: Sequence[nn.Module] | nn.ModuleList, given: torch.Tensor) -> list[torch.Tensor]:
    """Return what each of the layers makes of what the one before it made, on the host."""
    outputs = [given]
    for layer in layers:
        outputs.append(layer(outputs[-1]))
    return [output.cpu() for output in outputs[1:]]
