"""Masters in one block per layer: the same objects, the same values, nothing stale, pins given back."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from offload_runtime.engine import PackedWeights


class Pins:
    """Stands in for pinned memory, and counts it."""

    def __init__(self, limit: int = 1 << 30) -> None:
        self.limit = limit
        self.blocks: list[torch.Tensor] = []

    def pin(self, block: torch.Tensor) -> bool:
        if sum(b.nbytes for b in self.blocks) + block.nbytes > self.limit:
            return False
        self.blocks.append(block)
        return True

    def unpin(self, block: torch.Tensor) -> None:
        self.blocks = [other for other in self.blocks if other is not block]


class Want:
    """Somebody who wants blocks pinned."""


WANT = Want()


def packed_by(pins: Pins, who: object = WANT) -> PackedWeights:
    packed = PackedWeights(pins.pin, pins.unpin)
    packed.want_pinned(who)
    return packed


@pytest.fixture
def layer() -> list[nn.Parameter]:
    torch.manual_seed(0)
    shapes = [(8, 4), (4,), (3, 5, 7)]
    return [nn.Parameter(torch.randn(shape), requires_grad=False) for shape in shapes]


def test_packed_weights_are_the_same_objects_with_the_same_values_in_one_block(
    layer: list[nn.Parameter],
) -> None:
    values = [p.clone() for p in layer]
    packed = packed_by(Pins())
    packed.pack(layer)
    block = packed.block(layer)
    assert block is not None
    assert packed.is_pinned(block)
    assert all(torch.equal(p, v) for p, v in zip(layer, values, strict=True))
    low, high = block.data_ptr(), block.data_ptr() + block.nbytes
    assert all(low <= p.data_ptr() < high for p in layer)


def test_a_write_into_a_weight_is_a_write_into_the_block(layer: list[nn.Parameter]) -> None:
    packed = packed_by(Pins())
    packed.pack(layer)
    block = packed.block(layer)
    assert block is not None
    before = block.clone()
    layer[1].fill_(7)
    assert not torch.equal(block, before)


def test_a_replaced_weight_is_no_part_of_the_block(layer: list[nn.Parameter]) -> None:
    packed = packed_by(Pins())
    packed.pack(layer)
    assert packed.block([layer[0], nn.Parameter(layer[1].clone(), requires_grad=False), layer[2]]) is None
    assert packed.block(layer[:2]) is None


def test_without_room_to_pin_the_block_is_an_ordinary_one(layer: list[nn.Parameter]) -> None:
    packed = packed_by(Pins(limit=0))
    packed.pack(layer)
    block = packed.block(layer)
    assert block is not None
    assert not packed.is_pinned(block)


def test_pins_are_given_back_where_they_are_once_nobody_wants_them(layer: list[nn.Parameter]) -> None:
    pins, first, second = Pins(), Want(), Want()
    packed = packed_by(pins, first)
    packed.want_pinned(second)
    packed.pack(layer)
    values, places = [p.clone() for p in layer], [p.data_ptr() for p in layer]
    del first
    packed.pack(layer)
    assert packed.pinned_bytes == packed.packed_bytes > 0, "the other one wants them"
    del second
    packed.pack(layer)
    assert pins.blocks == []
    assert packed.pinned_bytes == 0 < packed.packed_bytes
    assert [p.data_ptr() for p in layer] == places
    assert all(torch.equal(p, v) for p, v in zip(layer, values, strict=True))


def test_blocks_are_pinned_where_they_are_once_somebody_wants_it(layer: list[nn.Parameter]) -> None:
    pins = Pins()
    packed = PackedWeights(pins.pin, pins.unpin)
    packed.pack(layer)
    block, places = packed.block(layer), [p.data_ptr() for p in layer]
    assert block is not None
    assert not packed.is_pinned(block)
    packed.want_pinned(WANT)
    packed.pack(layer)
    assert packed.block(layer) is block
    assert packed.is_pinned(block)
    assert [p.data_ptr() for p in layer] == places


def test_a_pin_that_was_refused_is_had_when_there_is_room_again(layer: list[nn.Parameter]) -> None:
    pins = Pins(limit=0)
    packed = packed_by(pins)
    values = [p.clone() for p in layer]
    for _ in range(2):
        packed.pack(layer)
        assert (packed.pinned_bytes, packed.packed_bytes > 0) == (0, True)
    block = packed.block(layer)
    pins.limit = 1 << 30
    packed.pack(layer)
    assert packed.block(layer) is block
    assert packed.pinned_bytes == packed.packed_bytes
    assert all(torch.equal(p, v) for p, v in zip(layer, values, strict=True))


@pytest.mark.parametrize("inference", [False, True])
def test_released_weights_are_the_same_objects_in_memory_of_their_own(
    layer: list[nn.Parameter], inference: bool
) -> None:
    pins = Pins()
    packed = packed_by(pins)
    values = [p.clone() for p in layer]
    packed.pack(layer)
    with torch.inference_mode(inference):
        packed.release(layer)
    assert (pins.blocks, packed.packed_bytes) == ([], 0)
    assert all(torch.equal(p, v) for p, v in zip(layer, values, strict=True))
    assert all(p.untyped_storage().nbytes() == p.nbytes for p in layer)
    packed.pack(layer)
    assert packed.block(layer) is not None


def test_packing_again_takes_nothing_more(layer: list[nn.Parameter]) -> None:
    pins = Pins()
    packed = packed_by(pins)
    for _ in range(3):
        packed.pack(layer)
    assert len(pins.blocks) == 1


def test_blocks_that_nobody_views_and_the_end_of_it_all_give_the_pins_back(layer: list[nn.Parameter]) -> None:
    pins = Pins()
    packed = packed_by(pins)
    packed.pack(layer)
    other = [nn.Parameter(torch.randn(4, 4), requires_grad=False)]
    packed.pack(other)
    packed.forget(other)
    assert len(pins.blocks) == 1
    del packed
    assert pins.blocks == []


def test_parts_that_somebody_has_copied_go_back_to_their_place() -> None:
    """ComfyUI makes quantised weights anew when it moves a model: the values are the same memory, the scales copies."""
    packed = packed_by(Pins())
    values, scale, other = torch.arange(8.0), torch.tensor(3.0), torch.ones(3)
    packed.pack([values, scale, other])
    block = packed.block([values, scale, other])
    scale = scale.clone()
    packed.pack([values, scale, other])
    assert packed.block([values, scale, other]) is block


@pytest.mark.parametrize("kept", [True, False])
def test_a_place_is_another_weights_as_long_as_somebody_has_it_or_its_values_differ(kept: bool) -> None:
    packed = packed_by(Pins())
    values, scale = torch.arange(8.0), torch.tensor(3.0)
    packed.pack([values, scale])
    block = packed.block([values, scale])
    mine = scale if kept else torch.tensor(4.0)
    other = scale.clone() if kept else mine
    del scale
    packed.pack([values, other])
    assert packed.block([values, other]) is not block
    other.zero_()
    assert mine == (3 if kept else 0)
