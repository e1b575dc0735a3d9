"""How layers are found, rule by rule; `test_coverage.py` holds what is found in ComfyUI's own models."""

from __future__ import annotations

import comfy.ops
import models
import pytest
import torch
from torch import nn

from offload_runtime.adapter.loose import loose_tensors
from offload_runtime.adapter.structure import find_stacks, layers_left, why_left_alone
from offload_runtime.engine.stacks import stack_layers


class Block(nn.Module):
    """A layer: two operations and a `forward`."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))


class Encoder(nn.Module):
    """A called module with a list of blocks inside."""

    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class TimestepEmbedSequential(nn.Sequential):
    """As in the UNet: a function walks it, nobody calls it."""


class Op(nn.Module):
    """An operation of ComfyUI's that has a part with weights."""

    comfy_cast_weights = False

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.part = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(x) * self.weight


def blocks(count: int) -> list[nn.Module]:
    return [Block() for _ in range(count)]


def group(**parts: nn.Module) -> nn.Module:
    """Return a plain container, as decoders and checkpoints' key names make them."""
    container = nn.Module()
    for name, part in parts.items():
        container.add_module(name, part)
    return container


def found(model: nn.Module) -> dict[str, list[str]]:
    """Return stack → the names of its layers inside it."""
    return {
        stack.name: [layer.name.removeprefix(f"{stack.name}.") for layer in stack.layers]
        for stack in find_stacks(model)
    }


def test_a_repeated_list_is_a_stack_however_deep_it_lies() -> None:
    assert found(group(model=group(encoder=Encoder(*blocks(3))))) == {"model.encoder.blocks": ["0", "1", "2"]}


def test_containers_inside_a_list_are_looked_through() -> None:
    up = nn.ModuleList(
        group(block=nn.ModuleList(blocks(2)), upsample=Block(), attn=nn.ModuleList()) for _ in range(2)
    )
    assert found(group(decoder=group(up=up))) == {
        "decoder.up": ["0.block.0", "0.block.1", "0.upsample", "1.block.0", "1.block.1", "1.upsample"]
    }


def test_a_sequential_in_a_list_is_called_unless_a_function_walks_it() -> None:
    called = nn.ModuleList([nn.Sequential(*blocks(2)), nn.Sequential(*blocks(2))])
    walked = nn.ModuleList([TimestepEmbedSequential(*blocks(2)), TimestepEmbedSequential(*blocks(1))])
    assert found(group(called=called, walked=walked)) == {
        "called": ["0", "1"],
        "walked": ["0.0", "0.1", "1.0"],
    }


def test_a_plain_container_of_blocks_is_a_stack() -> None:
    mid = group(block_1=Block(), attn_1=Block(), block_2=Block())
    assert found(group(mid=mid)) == {"mid": ["block_1", "attn_1", "block_2"]}


@pytest.mark.parametrize("parts", [1, 2])
def test_a_plain_container_of_parts_with_longer_stacks_is_looked_through(parts: int) -> None:
    """T5-Gemma's body has no `forward` and holds an encoder, which is not one layer."""
    body = group(**{f"part{i}": Encoder(*blocks(4)) for i in range(parts)})
    assert list(found(group(model=body))) == [f"model.part{i}.blocks" for i in range(parts)]


def test_layers_without_weights_and_lists_of_single_operations_are_none() -> None:
    assert found(group(layers=nn.ModuleList([*blocks(2), nn.Dropout()]))) == {"layers": ["0", "1"]}
    mlp = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    assert found(group(mlp=mlp)) == {}
    assert why_left_alone(group(mlp=mlp)) == "no repeated layers were found in it"
    assert found(group(blocks=nn.ModuleList(blocks(1)))) == {}


def test_operations_beside_the_stacks_that_comfyui_cannot_bring_are_stacks_of_their_own() -> None:
    model = group(
        table=nn.Embedding(4, 2),
        proj=nn.Linear(2, 2),
        encoder=Encoder(*blocks(2)),
        conv_out=Op(),
        rest=Block(),
    )
    assert found(model) == {
        "encoder.blocks": ["0", "1"],
        "proj": ["proj"],
        "conv_out": ["conv_out"],
        "rest.first": ["rest.first"],
        "rest.second": ["rest.second"],
    }


def test_statistics_parameters_and_modules_of_their_own_stay_beside_the_stacks() -> None:
    model = group(
        blocks=nn.ModuleList([nn.Sequential(Block(), nn.BatchNorm1d(2)), Block()]),
        inner=group(proj=Op()),
        positions=nn.Embedding(4, 2),
    )
    model.pos, model.inner.pos = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    assert found(model) == {"blocks": ["0", "1"], "inner.proj": ["inner.proj"]}
    layers = list(stack_layers(find_stacks(model)))
    assert [loose.name for loose in loose_tensors(model, layers)] == [
        "pos",
        "blocks.0.1.running_mean",
        "blocks.0.1.running_var",
        "blocks.0.1.num_batches_tracked",
        "inner.pos",
        "positions.weight",
    ]


class Quantised(torch.Tensor):
    """Bytes that are no plain tensor, with what it takes to read them beside."""


def quantised() -> nn.Module:
    """Return a block of which one weight cannot be taken apart."""
    block = Block()
    block.first.weight = nn.Parameter(torch.ones(2, 2).as_subclass(Quantised), requires_grad=False)
    block.first.weight.scale = torch.ones(2)
    return block


def test_a_layer_with_a_weight_that_cannot_be_taken_apart_is_comfyuis_as_a_whole() -> None:
    model = group(encoder=Encoder(Block(), Block()), decoder=Encoder(*blocks(2)))
    for block in model.encoder.blocks:
        block.first, block.second = comfy.ops.manual_cast.Linear(2, 2), comfy.ops.manual_cast.Linear(2, 2)
    model.encoder.blocks[1].first.weight = quantised().first.weight
    assert found(model) == {"encoder.blocks": ["0"], "decoder.blocks": ["0", "1"]}
    assert [layer.name for layer in layers_left(model)] == ["encoder.blocks.1"]


def test_a_model_of_such_layers_is_left_alone() -> None:
    model = group(encoder=Encoder(quantised(), quantised()))
    assert find_stacks(model) == ()
    assert "`encoder.blocks.0.first.weight` cannot be taken apart" in str(why_left_alone(model))
    assert [stack.name for stack in find_stacks(model, paged=True)] == ["encoder.blocks"]


def test_weights_that_are_computed_from_others_leave_the_model_alone() -> None:
    model = group(encoder=Encoder(*blocks(2)), conv=nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)))
    assert find_stacks(model) == ()
    assert "`conv` computes its weights out of others" in str(why_left_alone(model))


def test_a_model_with_stacks_has_no_reason_to_be_left_alone() -> None:
    model = models.FAMILIES["clip"].make().cond_stage_model
    assert list(found(model)) == ["clip_l.transformer.text_model.encoder.layers"]
    assert why_left_alone(model) is None
