"""A transformer with the dimensions of real models and weights of no meaning: what speeds are measured with.

`Geometry` names the dimensions, `StandIn` is built of any set of operations: torch's own, or ComfyUI's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True)
class Geometry:
    """A transformer stack. ``table`` is the vocabulary; None takes hidden states and ends in a projection."""

    hidden: int
    heads: int
    feed_forward: int
    layers: int
    tokens: int
    table: int | None = None
    key_heads: int | None = None
    gated: bool = False
    bias: bool = True
    dtype: torch.dtype = torch.bfloat16
    reverse: bool = False
    passes: int = 1

    @property
    def bytes(self) -> int:
        """About what the blocks take: the weights of their linear maps."""
        kv = self.hidden // self.heads * (self.key_heads or self.heads)
        attention = self.hidden * (2 * self.hidden + 2 * kv)
        return (
            self.layers
            * (attention + (2 + self.gated) * self.hidden * self.feed_forward)
            * self.dtype.itemsize
        )


class Block(nn.Module):
    """Attention and feed-forward, pre-norm."""

    def __init__(self, g: Geometry, ops: Any) -> None:
        super().__init__()
        self.heads, self.key_heads = g.heads, g.key_heads or g.heads
        self.gate_first = False  # whether the gate is called before `up`, which is registered before it
        kv = g.hidden // g.heads * self.key_heads
        self.norm1, self.norm2 = ops.LayerNorm(g.hidden), ops.LayerNorm(g.hidden)
        self.q = ops.Linear(g.hidden, g.hidden, bias=g.bias)
        self.k = ops.Linear(g.hidden, kv, bias=g.bias)
        self.v = ops.Linear(g.hidden, kv, bias=g.bias)
        self.o = ops.Linear(g.hidden, g.hidden, bias=g.bias)
        self.up = ops.Linear(g.hidden, g.feed_forward, bias=g.bias)
        self.gate = ops.Linear(g.hidden, g.feed_forward, bias=g.bias) if g.gated else None
        self.down = ops.Linear(g.feed_forward, g.hidden, bias=g.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, _ = x.shape
        h = self.norm1(x)
        q = self.q(h).view(batch, tokens, self.heads, -1).transpose(1, 2)
        k = self.k(h).view(batch, tokens, self.key_heads, -1).transpose(1, 2)
        v = self.v(h).view(batch, tokens, self.key_heads, -1).transpose(1, 2)
        h = functional.scaled_dot_product_attention(q, k, v, enable_gqa=self.heads != self.key_heads)
        x = x + self.o(h.transpose(1, 2).reshape(batch, tokens, -1))
        h = self.norm2(x)
        if self.gate is None:
            inner = functional.gelu(self.up(h))
        elif self.gate_first:
            inner = functional.gelu(self.gate(h)) * self.up(h)
        else:
            inner = functional.gelu(self.up(h)) * self.gate(h)
        y: torch.Tensor = x + self.down(inner)
        return y


class StandIn(nn.Module):
    """Token table or nothing, blocks either way round, norm, and a projection if there is no table."""

    def __init__(self, g: Geometry, ops: Any = nn) -> None:
        super().__init__()
        self.geometry = g
        self.embed = ops.Embedding(g.table, g.hidden) if g.table else None
        self.blocks = nn.ModuleList(Block(g, ops) for _ in range(g.layers))
        self.norm = ops.LayerNorm(g.hidden)
        self.head = None if g.table else ops.Linear(g.hidden, g.hidden, bias=g.bias)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        for _ in range(self.geometry.passes):
            x = given if self.embed is None else self.embed(given)
            if x.dtype != self.geometry.dtype:
                x = x.to(self.geometry.dtype)
            for block in reversed(self.blocks) if self.geometry.reverse else self.blocks:
                x = block(x)
            x = self.norm(x)
            if self.head is not None:
                x = self.head(x)
        return x

    def sample(self, device: torch.device) -> torch.Tensor:
        """Something to run on."""
        g = self.geometry
        if g.table:
            return torch.zeros(1, g.tokens, dtype=torch.int64, device=device)
        return torch.zeros(1, g.tokens, g.hidden, dtype=g.dtype, device=device)
