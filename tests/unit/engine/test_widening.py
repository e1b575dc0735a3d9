"""Values in a wider dtype: the bits that torch gives."""

from __future__ import annotations

import itertools

import pytest
import torch

from offload_runtime.engine.weight_file import bytes_of
from offload_runtime.engine.widening import EIGHT_BITS, widen_in_place, widened, without_loss

HALVES = (torch.float16, torch.bfloat16)
EXACT = [
    *itertools.product(EIGHT_BITS, (*HALVES, torch.float32)),
    *((half, torch.float32) for half in HALVES),
]


def _all_values(dtype: torch.dtype) -> torch.Tensor:
    """Return every value of a dtype but those that are no number, for which torch has more than one conversion."""
    if dtype in EIGHT_BITS:  # in pairs
        return torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16).view(dtype)
    values = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16).view(dtype)
    return values[values.isfinite()]


def _bits(values: torch.Tensor) -> torch.Tensor:
    return values.contiguous().view(torch.uint8)


@pytest.mark.parametrize(("narrow", "wide"), EXACT)
@pytest.mark.parametrize("count", [1, 2, 9])
def test_the_bits_are_those_that_torch_gives(narrow: torch.dtype, wide: torch.dtype, count: int) -> None:
    weight = _all_values(narrow).repeat(count).view(count, -1)
    expected = _bits(weight.to(wide))
    assert torch.equal(_bits(widened(weight, wide)), expected)
    target = torch.empty(weight.shape, dtype=wide)
    bytes_of(target)[-weight.nbytes :] = bytes_of(weight)
    widen_in_place(bytes_of(target), narrow, wide)
    assert torch.equal(_bits(target), expected)


@pytest.mark.parametrize("narrow", EIGHT_BITS)
def test_an_odd_number_of_values_at_an_odd_place_is_converted_too(narrow: torch.dtype) -> None:
    weight = _all_values(narrow)[1:1000]
    assert torch.equal(_bits(widened(weight, torch.float16)), _bits(weight.to(torch.float16)))


@pytest.mark.parametrize(("narrow", "wide"), EXACT)
def test_what_is_exact_comes_back(narrow: torch.dtype, wide: torch.dtype) -> None:
    assert without_loss(narrow, wide)
    values = _all_values(narrow)
    values = values[values.float().isfinite()]
    assert torch.equal(_bits(values.to(wide).to(narrow)), _bits(values))


def test_what_loses_something_is_not_exact() -> None:
    assert not without_loss(torch.bfloat16, torch.float16)
    assert not without_loss(torch.float32, torch.float16)
    assert not without_loss(torch.float16, torch.bfloat16)


@pytest.mark.parametrize("wide", [*HALVES, torch.float32])
@pytest.mark.parametrize("narrow", EIGHT_BITS)
def test_stretches_with_and_without_what_is_no_number_are_converted_alike(
    narrow: torch.dtype, wide: torch.dtype
) -> None:
    values = _all_values(narrow)
    values = values[values.float().isfinite()]
    weight = torch.cat([values.repeat(35), _all_values(narrow).repeat(3), values.repeat(9)])
    target = torch.empty(weight.shape, dtype=wide)
    assert widened(weight, wide, into=target) is target
    assert torch.equal(_bits(target), _bits(weight.to(wide)))


def test_nothing_is_converted_to_nothing() -> None:
    assert widened(torch.empty(0, 4, dtype=torch.float8_e4m3fn), torch.float32).shape == (0, 4)
