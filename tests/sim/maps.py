"""Small models that cost nothing to run where only shapes count: square maps, a token table, what core always loads."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

BF16 = torch.bfloat16


class Block(nn.Module):
    """A layer of one map."""

    def __init__(self, ops: Any, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        with torch.device("meta"):
            made = ops.Linear(width, width, bias=False, dtype=dtype)
        self.map = made.to_empty(device="cpu").requires_grad_(False)
        self.map.weight_comfy_model_dtype = BF16

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.map(x)


class Always(nn.Module):
    """A leaf that is none of ComfyUI's operations: core loads it whole."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(size, dtype=torch.uint8), requires_grad=False)


class Maps(nn.Module):
    """Blocks, what core always loads, and a token table.

    Args:
        ops: ComfyUI's operations.
        count: how many blocks.
        width: of their maps; in bfloat16 one of 4096 is a page of dynamic VRAM.
        dtype: in which the maps wait.
        always: how large what core always loads is, in maps of bfloat16.
        table: how large the token table is, in the same.
    """

    def __init__(
        self, ops: Any, count: int, *, width: int, dtype: torch.dtype = BF16, always: int = 0, table: int = 0
    ) -> None:
        super().__init__()
        with torch.device("meta"):
            embedding = ops.Embedding(width * table, width, dtype=BF16)
        self.tokens = embedding.to_empty(device="cpu").requires_grad_(False)
        self.blocks = nn.ModuleList(Block(ops, width, dtype) for _ in range(count))
        self.always = Always(always * 2 * width * width)
        self.width = width

    def get_input_embeddings(self) -> nn.Module:
        return self.tokens

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x
