"""On what a check is made, and how much of it is used."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..engine.check import T5_LIKE, Geometry, Pins, cuda_pins

_MB = 1 << 20


@dataclass(frozen=True)
class Ground:
    """Where is measured.

    Attributes:
        device: what computes.
        folder: where files may be written for a moment.
        pins: how memory is pinned.
        comfyui: ComfyUI's version, or "".
    """

    device: torch.device
    folder: Path
    pins: Pins
    comfyui: str = ""


@dataclass(frozen=True)
class Extent:
    """How much is moved and computed; less where there is no room.

    Attributes:
        small: bytes of the smallest copy to the device, a small layer's.
        large: bytes of the largest one.
        file: bytes of the file.
        side: rows and columns of the matrices that are multiplied beside copies.
        width: of the layers that are compared bit for bit.
        stacks: what the claims are measured with, the first for which there is room.
    """

    small: int = _MB
    large: int = 256 * _MB
    file: int = 256 * _MB
    side: int = 2048
    width: int = 256
    stacks: tuple[Geometry, ...] = field(
        default=(
            T5_LIKE,
            Geometry(2048, 32, 5120, 6, 2048, gated=True, bias=False),
            Geometry(1024, 16, 2560, 6, 1024, gated=True, bias=False),
        )
    )


def default_device() -> torch.device:
    """Return the device that torch prefers."""
    accelerator: Any = getattr(torch, "accelerator", None)  # torch 2.6
    if accelerator is not None and accelerator.is_available():
        kind = accelerator.current_accelerator().type
        return torch.device(kind, 0) if kind != "mps" else torch.device(kind)
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def default_pins(device: torch.device) -> Pins:
    """Return torch's own way to pin memory where it is, which it has for CUDA and ROCm only."""
    return cuda_pins() if device.type == "cuda" else Pins(lambda block: False)
