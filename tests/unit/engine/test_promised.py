"""A weight that is converted only when somebody asks for its values."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load, save, save_file
from torch import nn

from offload_runtime.engine import MappedWeights
from offload_runtime.engine.promised import promised

PAIRS = [
    (torch.float8_e4m3fn, torch.float16),
    (torch.float8_e5m2, torch.bfloat16),
    (torch.float16, torch.float32),
]


@pytest.mark.parametrize(("stored", "used"), PAIRS)
@pytest.mark.parametrize("resting", [False, True])
def test_it_has_the_bits_of_a_conversion_and_leaves_the_weight_as_it_is(
    tmp_path: Path, stored: torch.dtype, used: torch.dtype, resting: bool
) -> None:
    values = torch.randn(6, 8, generator=torch.Generator().manual_seed(0)).to(stored)
    weight = nn.Parameter(values.clone(), requires_grad=False)
    mapped = MappedWeights()
    if resting:
        save_file({"weight": values}, tmp_path / "model.safetensors")
        assert mapped.adopt({"weight": weight}, [tmp_path / "model.safetensors"]) > 0
    promise = promised(weight, used)
    assert (promise.dtype, promise.shape, promise.is_contiguous()) == (used, values.shape, True)
    assert torch.equal(promise.clone(), values.to(used))
    assert torch.equal(load(save({"weight": promise}))["weight"], values.to(used))
    assert mapped.holds(weight) is resting
    assert weight.dtype == stored


def test_it_takes_no_memory_until_then() -> None:
    promise = promised(
        nn.Parameter(torch.zeros(64, 64, dtype=torch.float16), requires_grad=False), torch.float32
    )
    with torch._C.DisableTorchFunctionSubclass():
        assert promise.untyped_storage().nbytes() == 0
    assert promise.detach().shape == (64, 64)
    with torch._C.DisableTorchFunctionSubclass():
        assert promise.untyped_storage().nbytes() == 0


def test_it_has_the_values_that_the_weight_has_when_it_is_asked() -> None:
    weight = nn.Parameter(torch.zeros(4, dtype=torch.float16), requires_grad=False)
    promise = promised(weight, torch.float32)
    weight.fill_(3)
    assert torch.equal(promise + 0, torch.full((4,), 3.0))
