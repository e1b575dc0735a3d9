"""Slots hold tensors of any layout, bit for bit, beside each other in one buffer."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from offload_runtime.engine.slots import ALIGNMENT, Slots, layout_of, packed_bytes, why_unmovable

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.float64, torch.bool]


@st.composite
def dense_tensors(draw: st.DrawFn) -> torch.Tensor:
    shape = draw(st.lists(st.integers(0, 5), max_size=4))
    tensor = torch.randint(0, 2, shape).to(draw(st.sampled_from(DTYPES)))
    return tensor.permute(draw(st.permutations(range(len(shape)))))


def put(slots: Slots, start: int, tensors: list[torch.Tensor]) -> list[nn.Parameter]:
    views = slots.views(start, layout_of(tensors))
    for view, tensor in zip(views, tensors, strict=True):
        view.copy_(tensor)
    return views


@given(st.lists(dense_tensors(), min_size=1, max_size=5), st.lists(dense_tensors(), min_size=1, max_size=5))
def test_neighbours_keep_values_strides_and_dtypes(
    first: list[torch.Tensor], second: list[torch.Tensor]
) -> None:
    layers = [[t for t in tensors if why_unmovable(t) is None] for tensors in (first, second)]
    slots = Slots(sum(map(packed_bytes, layers)), torch.device("cpu"))
    placed = [put(slots, 0, layers[0]), put(slots, packed_bytes(layers[0]), layers[1])]
    for views, tensors in zip(placed, layers, strict=True):
        for view, tensor in zip(views, tensors, strict=True):
            assert torch.equal(view, tensor)
            assert (view.dtype, view.stride()) == (tensor.dtype, tensor.stride())
            assert view.storage_offset() * view.element_size() % ALIGNMENT == 0


def test_views_are_made_once_per_layout_and_place() -> None:
    slots = Slots(4 * ALIGNMENT, torch.device("cpu"))
    first, second = torch.randn(4, 4), torch.randn(4, 4)
    views = put(slots, 0, [first])
    assert put(slots, 0, [second])[0] is views[0]
    assert put(slots, ALIGNMENT, [first])[0] is not views[0]
    assert torch.equal(views[0], second)


class Hidden(torch.Tensor):
    """A subclass that does not say what it is made of."""

    __torch_dispatch__ = classmethod(lambda cls, func, types, args=(), kwargs=None: NotImplemented)


def with_scale() -> torch.Tensor:
    tensor = torch.randn(3).as_subclass(type("Scaled", (torch.Tensor,), {}))
    tensor.scale = torch.ones(1)
    return tensor


@pytest.mark.parametrize(
    ("tensor", "word"),
    [
        (torch.empty(2, device="meta"), "no data"),
        (torch.randn(4, 4)[:, ::2], "dense"),
        (torch.randn(1).expand(4), "dense"),
        (torch.randn(4, 4).to_sparse(), "dense"),
        (torch.Tensor._make_wrapper_subclass(Hidden, (3,)), "Hidden"),
        (with_scale(), "scale"),
    ],
)
def test_what_cannot_be_moved_is_refused_with_a_reason(tensor: torch.Tensor, word: str) -> None:
    assert word in (why_unmovable(tensor) or "")


def test_parameters_and_scalars_can_be_moved() -> None:
    assert why_unmovable(nn.Parameter(torch.tensor(1.5))) is None
