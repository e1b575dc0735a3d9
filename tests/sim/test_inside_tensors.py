"""Weights that are no plain Parameter of a leaf module: fp8, quantised, GGUF-like, tied, non-leaf."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from offload_runtime.engine import parameter_bytes

from . import comfy_models
from .comfyui import ComfyUI
from .placing import BIG, end_node, place, small_clip, vram_state

pytestmark = pytest.mark.usefixtures("_inference_mode")

WIDTH = 64


def encode(clip: Any) -> torch.Tensor:
    return comfy_models.encode(clip, "fox")[0]


def test_fp8_weights_are_streamed(comfy: ComfyUI) -> None:
    comfy.sim.cap = BIG
    wired = small_clip(comfy)
    for name, parameter in wired.patcher.model.named_parameters():
        if "_proj.weight" in name or ".mlp.fc" in name:
            module = wired.patcher.model.get_submodule(name.rpartition(".")[0])
            value = parameter.to(torch.float8_e4m3fn)
            setattr(module, name.rpartition(".")[2], nn.Parameter(value, requires_grad=False))
    with vram_state(comfy, "NO_VRAM"):
        expected = encode(wired)
    comfy.mm.unload_all_models()
    placed = place("clip", wired)
    for _ in range(2):
        assert torch.equal(encode(placed.value), expected)
    fp8 = sum(p.nbytes for p in placed.patcher.model.parameters() if p.dtype == torch.float8_e4m3fn)
    assert placed.row.moved_bytes / 2 > fp8 > 0
    comfy.mm.unload_all_models()
    assert {p.device.type for p in placed.patcher.model.parameters()} == {"cpu"}


class Block(nn.Module):
    """A layer of ComfyUI's operations with a scale of its own."""

    def __init__(self, ops: Any, inner: int = 4 * WIDTH) -> None:
        super().__init__()
        self.up, self.down = ops.Linear(WIDTH, inner), ops.Linear(inner, WIDTH)
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x))) * self.scale.to(x)


class Stacked(nn.Module):
    def __init__(self, ops: Any, block: Callable[..., nn.Module] = Block, count: int = 4) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(block(ops) for _ in range(count))
        generator = torch.Generator().manual_seed(4)
        for parameter in self.parameters():
            parameter.requires_grad_(False)
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


GIVEN = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(5))


class Twice:
    """A model as core streams it and as we do."""

    def __init__(self, comfy: ComfyUI, model: nn.Module) -> None:
        self.comfy, self.model = comfy, model
        self.wired = comfy.model_patcher.ModelPatcher(model, comfy.sim.device, torch.device("cpu"))

    def run(self, patcher: Any) -> torch.Tensor:
        self.comfy.mm.load_models_gpu([patcher])
        result = self.model(GIVEN.to(self.comfy.sim.device)).cpu()
        end_node(self.comfy)
        return result

    def core(self, patcher: Any = None) -> torch.Tensor:
        with vram_state(self.comfy, "NO_VRAM"):
            result = self.run(patcher or self.wired)
        self.comfy.mm.unload_all_models()
        return result


def quantised(comfy: ComfyUI, weight: torch.Tensor) -> torch.Tensor:
    kind = importlib.import_module("comfy.quant_ops").QuantizedTensor
    return kind.from_float(weight, "TensorCoreFP8Layout", scale=torch.tensor(0.01))


class Opaque(torch.Tensor):
    """A weight of a kind that nobody can take apart: it does not say what it is made of."""

    @staticmethod
    def __new__(cls, data: torch.Tensor) -> Opaque:
        self: Opaque = torch.Tensor._make_wrapper_subclass(
            cls, data.shape, dtype=data.dtype, device=data.device
        )
        self.values = data
        return self

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map_only(Opaque, lambda opaque: opaque.values, (args, kwargs or {}))
        result = func(*args, **kwargs)
        kept = (torch.ops.aten.detach.default, torch.ops.aten._to_copy.default)
        return Opaque(result) if func in kept else result


@pytest.mark.parametrize("count", [1, 4])
def test_a_layer_with_a_weight_that_cannot_be_taken_apart_is_cores_as_a_whole(
    comfy: ComfyUI, count: int
) -> None:
    """On 0.3.75 core brings such a weight on its own stream, and a plain bias of ours would not have arrived."""
    comfy.sim.cap = BIG
    twice = Twice(comfy, Stacked(comfy.ops.manual_cast))
    plain, mixed = twice.model.blocks[count:], twice.model.blocks[:count]
    for block in mixed:
        block.up.weight = nn.Parameter(Opaque(block.up.weight.data), requires_grad=False)
    expected = twice.core()
    placed = place("model", twice.wired)
    for _ in range(3):
        torch.testing.assert_close(twice.run(placed.value), expected)
    assert placed.row.moved_bytes == 3 * sum(p.nbytes for block in plain for p in block.parameters())
    if plain:
        assert placed.row.applied == "layerwise"
        assert "3 of 3 layers" in placed.row.how
        assert "1 (" in placed.row.how
        assert "cannot be taken apart are left to ComfyUI" in placed.row.how
    else:
        assert placed.row.applied == "comfyui"
        assert "Opaque is a tensor subclass" in placed.row.why
    comfy.mm.unload_all_models()
    assert torch.equal(twice.core(), expected)


def test_quantised_weights_are_streamed_as_they_are(comfy: ComfyUI) -> None:
    comfy.sim.cap = BIG
    twice = Twice(comfy, Stacked(comfy.ops.manual_cast))
    for block in twice.model.blocks[1:]:
        block.up.weight = nn.Parameter(quantised(comfy, block.up.weight), requires_grad=False)
    expected = twice.core()
    kept = dict(twice.model.named_parameters())
    placed = place("model", twice.wired)
    for _ in range(3):
        assert torch.equal(twice.run(placed.value), expected)
    assert placed.row.moved_bytes == 3 * parameter_bytes(twice.model.blocks)
    assert "4 of 4 layers" in placed.row.how
    comfy.mm.unload_all_models()
    now = dict(twice.model.named_parameters())
    assert all(now[name] is kept[name] for name in kept), "the same objects, never flattened"
    assert torch.equal(twice.core(), expected)


def test_a_weight_that_cannot_be_taken_apart_later_leaves_its_layer_to_core(comfy: ComfyUI) -> None:
    comfy.sim.cap = BIG
    twice = Twice(comfy, Stacked(comfy.ops.manual_cast))
    placed = place("model", twice.wired)
    twice.run(placed.value)
    moved = placed.row.moved_bytes
    up = twice.model.blocks[1].up
    comfy.mm.unload_all_models()
    up.weight = nn.Parameter(Opaque(up.weight.data), requires_grad=False)
    expected = twice.core()
    torch.testing.assert_close(twice.run(placed.value), expected)
    assert placed.row.moved_bytes == moved * 7 // 4
    assert "3 of 4 layers" in placed.row.how


def test_a_weight_that_is_quantised_later_is_streamed_as_such(comfy: ComfyUI) -> None:
    comfy.sim.cap = BIG
    twice = Twice(comfy, Stacked(comfy.ops.manual_cast))
    placed = place("model", twice.wired)
    twice.run(placed.value)
    moved = placed.row.moved_bytes
    up = twice.model.blocks[1].up
    comfy.mm.unload_all_models()
    up.weight = nn.Parameter(quantised(comfy, up.weight), requires_grad=False)
    expected = twice.core()
    assert torch.equal(twice.run(placed.value), expected)
    assert placed.row.moved_bytes == moved + parameter_bytes(twice.model.blocks)


class Packed(nn.Parameter):
    """Like GGUF's tensor: bytes that pretend another shape, `.to` keeps what it is, `clone` returns itself."""

    @staticmethod
    def __new__(cls, data: torch.Tensor, shape: torch.Size, scale: float) -> Packed:
        self = torch.Tensor._make_subclass(cls, data, False)
        self.packed_shape, self.scale = shape, scale
        return self

    def to(self, *args: Any, **kwargs: Any) -> Packed:
        return Packed(self.as_subclass(torch.Tensor).to(*args, **kwargs), self.packed_shape, self.scale)

    def clone(self, *args: Any, **kwargs: Any) -> Packed:
        return self

    def unpack(self, device: torch.device) -> torch.Tensor:
        data = self.as_subclass(torch.Tensor).to(device)
        return (data.float() * self.scale).view(self.packed_shape)


class PackedLinear(nn.Module):
    """Casts its own weight, as such packs' operations do."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.weight.unpack(x.device))


class GGUFBlock(Block):
    def __init__(self, ops: Any) -> None:
        super().__init__(ops)
        self.packed = PackedLinear(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.packed(super().forward(x))


@pytest.mark.parametrize("count", [1, 4])
def test_gguf_like_weights_are_streamed_as_they_are(comfy: ComfyUI, count: int) -> None:
    comfy.sim.cap = BIG
    twice = Twice(comfy, Stacked(comfy.ops.manual_cast, GGUFBlock))
    for block in twice.model.blocks:
        data = torch.randint(-100, 100, (WIDTH * WIDTH,), dtype=torch.int8)
        block.packed._parameters["weight"] = Packed(data, torch.Size((WIDTH, WIDTH)), 0.002)
    for block in twice.model.blocks[count:]:
        block.packed = nn.Identity()
    expected = twice.core()
    kept = dict(twice.model.named_parameters())
    placed = place("model", twice.wired)
    for _ in range(2):
        assert torch.equal(twice.run(placed.value), expected)
    assert placed.row.moved_bytes == 2 * parameter_bytes(twice.model.blocks)
    comfy.mm.unload_all_models()
    now = dict(twice.model.named_parameters())
    assert all(now[name] is kept[name] for name in kept)
    assert sum(type(parameter) is Packed for parameter in now.values()) == count
    assert torch.equal(twice.core(), expected)


class TiedBlock(Block):
    def __init__(self, ops: Any) -> None:
        super().__init__(ops)
        self.again = ops.Linear(WIDTH, 4 * WIDTH)
        self.again.weight = self.up.weight  # inside one layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + self.down(self.again(x))


def test_tied_weights_stay_tied_and_are_packed_once(comfy: ComfyUI) -> None:
    comfy.sim.cap = BIG
    twice = Twice(comfy, Stacked(comfy.ops.manual_cast, TiedBlock))
    blocks = twice.model.blocks
    blocks[2].down.weight = blocks[0].down.weight  # across layers
    expected = twice.core()
    pinned = comfy.sim.pinned
    placed = place("model", twice.wired)
    for _ in range(3):
        assert torch.equal(twice.run(placed.value), expected)
        now = comfy.sim.pinned
    assert now - pinned <= placed.row.bytes * 1.2, "no block is left behind, use after use"
    assert blocks[2].down.weight is blocks[0].down.weight
    assert all(block.again.weight is block.up.weight for block in blocks)
    blocks[0].down.weight.mul_(2)
    assert torch.equal(twice.run(placed.value), twice.core())


def test_a_parameter_of_a_layer_itself_is_streamed_and_resident_under_a_budget(comfy: ComfyUI) -> None:
    """Core leaves such a weight where it is; on 0.3.75 and 0.33 alike it is then cast where it is used."""
    comfy.sim.cap = BIG
    twice = Twice(comfy, Stacked(comfy.ops.manual_cast))
    expected = twice.core()
    for budget in (None, "200KB", "64MB"):
        placed = place("model", twice.wired, vram_budget=budget)
        for _ in range(2):
            assert torch.equal(twice.run(placed.value), expected)
    assert {b.scale.device.type for b in twice.model.blocks} == {"sim"}, "64 MB is all of it"
    comfy.mm.unload_all_models()
    assert {b.scale.device.type for b in twice.model.blocks} == {"cpu"}
