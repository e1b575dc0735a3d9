"""Quantised models, as ComfyUI loads them from a file: every format that its version knows."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

WIDTH, INNER = 256, 512
FORMATS = (
    "float8_e4m3fn",
    "float8_e5m2",
    "int8_tensorwise",
    "mxfp8",
    "nvfp4",
    "convrot_w4a4",
    "asym_w4a8_int8",
)
"""Those of ComfyUI 0.33; 0.3.75 knows the first one."""

GIVEN = torch.randn(48, WIDTH, generator=torch.Generator().manual_seed(5)).to(torch.bfloat16)


def forget_constants() -> None:
    """Drop the constants that the kernels have kept, which are on the card of an earlier test."""
    for name, module in list(sys.modules.items()):
        if name.startswith("comfy_kitchen."):
            for kept in (vars(module).get("_HADAMARD_CACHE"), vars(module).get("E2M1_LUT_CACHE")):
                if kept is not None:
                    kept.clear()


def documented(format: str, column: str) -> str:
    """Return what `docs/quantised.md` says of a format."""
    lines = (Path(__file__).parents[2] / "docs" / "quantised.md").read_text(encoding="utf-8").splitlines()
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    row = next(row for row in table if row[0] == f"`{format}`")
    return row[table[0].index(f"{column}, {_module('comfyui_version').__version__}")]


def _module(name: str) -> Any:
    return importlib.import_module(name)


def formats() -> dict[str, Any]:
    """Return the formats that this ComfyUI knows."""
    return dict(_module("comfy.quant_ops").QUANT_ALGOS)


class Block(nn.Module):
    """A layer of two maps and a norm."""

    def __init__(self, ops: Any) -> None:
        super().__init__()
        like = {"dtype": torch.bfloat16}
        self.up, self.down = ops.Linear(WIDTH, INNER, **like), ops.Linear(INNER, WIDTH, **like)
        self.norm = ops.LayerNorm(WIDTH, **like)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Quantised(nn.Module):
    """Blocks whose maps are quantised.

    Args:
        format: one of `FORMATS`.
        count: how many blocks.
        every: one map in so many is quantised, the others are plain.
        state: is given what a file would have of it.
    """

    def __init__(
        self,
        format: str,
        count: int = 4,
        every: int = 1,
        state: Callable[[dict[str, torch.Tensor]], object] = lambda state: None,
    ) -> None:
        super().__init__()
        names = [f"blocks.{i}.{part}" for i in range(count) for part in ("up", "down")]
        chosen = names[::every]
        self.blocks = nn.ModuleList(Block(_operations(format, chosen)) for _ in range(count))
        loaded = self._state(format, names, chosen)
        state(loaded)
        self.load_state_dict(loaded, strict=False)
        self.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x

    def _state(self, format: str, names: list[str], chosen: list[str]) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(4)
        state = {}
        for name in names:
            out, into = (INNER, WIDTH) if name.endswith("up") else (WIDTH, INNER)
            weight = torch.randn(out, into, generator=generator).to(torch.bfloat16) * 0.05
            state[f"{name}.bias"] = torch.randn(out, generator=generator).to(torch.bfloat16) * 0.1
            state |= quantised(format, name, weight) if name in chosen else {f"{name}.weight": weight}
        for key, value in self.state_dict().items():
            if ".norm." in key:
                state[key] = torch.ones_like(value) if key.endswith("weight") else torch.zeros_like(value)
        return state


def quantised(format: str, name: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return what a file has of one quantised map."""
    ops = _module("comfy.quant_ops")
    layout = formats()[format]["comfy_tensor_layout"]
    scale = {"scale": weight.abs().max().float() / 448} if format == "float8_e4m3fn" else {}
    tensor = ops.QuantizedTensor.from_float(weight, layout, **scale)
    if not hasattr(tensor, "_params"):
        return {f"{name}.weight": tensor._qdata, f"{name}.weight_scale": tensor._layout_params["scale"]}
    conf = {"format": format, **{k: v for k, v in vars(tensor._params).items() if k.startswith("convrot")}}
    marked = torch.tensor(list(json.dumps(conf).encode()), dtype=torch.uint8)
    return {**tensor.state_dict(f"{name}.weight"), f"{name}.comfy_quant": marked}


def _operations(format: str, names: list[str]) -> Any:
    if "nvfp4" not in formats():
        return _module("comfy.ops").mixed_precision_ops(
            {name: {"format": format} for name in names}, torch.bfloat16
        )
    # A CPU does not multiply in these two; ComfyUI then computes with the numbers that they stand for.
    return _module("comfy.ops").mixed_precision_ops({}, torch.bfloat16, disabled={"nvfp4", "mxfp8"})
