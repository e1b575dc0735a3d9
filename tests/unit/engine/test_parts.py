"""Weights are taken apart into plain tensors and put together again around copies of those."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from offload_runtime.engine.parts import assemble, distinct_parts, form_of, parts_of, why_whole
from offload_runtime.engine.slots import Slots, packed_bytes, why_unmovable

CPU = torch.device("cpu")


class Wrapper(torch.Tensor):
    """A wrapper subclass of values and a scale, by torch's protocol."""

    @staticmethod
    def __new__(cls, values: torch.Tensor, scale: torch.Tensor, bits: int = 8) -> Wrapper:
        self: Wrapper = torch.Tensor._make_wrapper_subclass(cls, values.shape, dtype=torch.float32)
        self.values, self.scale, self.bits = values, scale, bits
        return self

    def __tensor_flatten__(self) -> tuple[list[str], dict[str, Any]]:
        return ["values", "scale"], {"bits": self.bits, "shape": (self.shape, [1, 2])}

    @classmethod
    def __tensor_unflatten__(
        cls, inner: dict[str, torch.Tensor], context: Any, size: Any, stride: Any
    ) -> Any:
        return cls(inner["values"], inner["scale"], context["bits"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func is torch.ops.aten.detach.default
        return cls(args[0].values, args[0].scale.clone(), args[0].bits)  # as ComfyUI's does


class Converts(Wrapper):
    """One that is made of other tensors than it was given."""

    @classmethod
    def __tensor_unflatten__(
        cls, inner: dict[str, torch.Tensor], context: Any, size: Any, stride: Any
    ) -> Any:
        return cls(inner["values"].clone(), inner["scale"], context["bits"])


class Packed(torch.Tensor):
    """Bytes that pretend another shape."""


def wrapper(kind: type[Wrapper] = Wrapper, bits: int = 8) -> torch.Tensor:
    return nn.Parameter(
        kind(torch.randint(-9, 9, (4, 3), dtype=torch.int8), torch.rand(4), bits), requires_grad=False
    )


def packed(**attributes: Any) -> torch.Tensor:
    tensor = torch.randint(0, 255, (12,), dtype=torch.uint8).as_subclass(Packed)
    tensor.__dict__.update(attributes)
    return tensor


def into_slot(weight: Any) -> tuple[Any, Slots]:
    slots = Slots(packed_bytes(parts_of(weight)), CPU)
    there = slots.weights(0, [weight])[0]
    for place, part in zip(parts_of(there), parts_of(weight), strict=True):
        place.copy_(part)
    return there, slots


def test_a_wrapper_is_the_same_in_a_slot() -> None:
    weight: Any = wrapper()
    there, slots = into_slot(weight)
    assert type(there) is Wrapper
    assert isinstance(there, nn.Parameter)
    assert torch.equal(there.values, weight.values)
    assert torch.equal(there.scale, weight.scale)
    start, end = slots.region(0, 1).data_ptr(), slots.region(0, 1).data_ptr() + slots.capacity
    assert all(start <= part.data_ptr() < end for part in parts_of(there)), "a scale, too, is in the slot"


def test_it_is_put_together_once_for_each_place_and_kind() -> None:
    slots = Slots(4096, CPU)
    one: Any = wrapper()
    there = slots.weights(0, [one])[0]
    assert slots.weights(0, [wrapper()])[0] is there  # type: ignore[list-item]
    assert slots.weights(2048, [one])[0] is not there
    assert slots.weights(0, [wrapper(bits=4)])[0] is not there  # type: ignore[list-item]


def test_bytes_that_pretend_another_shape_keep_what_they_say_of_themselves() -> None:
    weight: Any = packed(kind=7, logical=torch.Size((3, 8)), patches=[([torch.ones(2)], "key")])
    there, _ = into_slot(weight)
    assert type(there) is Packed
    assert (there.kind, there.logical, there.patches) == (7, weight.logical, weight.patches)
    assert torch.equal(there.as_subclass(torch.Tensor), weight.as_subclass(torch.Tensor))
    weight.patches = []
    assert into_slot(weight)[0].patches == []


@pytest.mark.parametrize(
    ("weight", "word"),
    [
        (wrapper(Converts), "Converts is not the same again"),
        (packed(scale=torch.ones(1)), "`scale` may be part of the weight"),
        (packed(state=object()), "`state` may be part of the weight"),
    ],
)
def test_what_may_not_be_the_same_again_is_left_whole(weight: torch.Tensor, word: str) -> None:
    assert word in (why_whole(weight) or "")
    assert word in (why_unmovable(weight) or "")


def test_plain_weights_are_their_own_parts() -> None:
    weight = nn.Parameter(torch.ones(3))
    assert parts_of(weight) == (weight,)
    assert why_whole(weight) is None
    assert next(iter(distinct_parts([weight, weight]))) is weight
    assert assemble(weight, iter([weight])) is weight
    assert form_of(weight) == form_of(nn.Parameter(torch.zeros(3)))
    assert form_of(weight) != form_of(nn.Parameter(torch.zeros(4)))
