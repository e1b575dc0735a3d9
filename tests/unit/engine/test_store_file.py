"""Weights written to a file of ours."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from offload_runtime.engine.store_file import can_store, digest, write
from offload_runtime.engine.weight_file import WeightFile

WEIGHTS = {
    "bytes": torch.arange(5, dtype=torch.uint8),
    "wide": torch.randn(3, 4, generator=torch.Generator().manual_seed(0)),
    "eight": torch.arange(9).to(torch.uint8).view(torch.float8_e4m3fn),
    "half": torch.ones(7, 1, dtype=torch.float16),
    "number": torch.tensor(2.5, dtype=torch.bfloat16),
}


def nothing(_: int) -> None:
    """Take no notice of the progress."""


def test_it_is_a_safetensors_file_whose_tensors_can_be_mapped(tmp_path: Path) -> None:
    file = tmp_path / "weights.safetensors"
    steps: list[int] = []
    write(file, WEIGHTS, steps.append)
    found = load_file(file)
    assert found.keys() == WEIGHTS.keys()
    for name, weight in WEIGHTS.items():
        assert (found[name].dtype, found[name].shape) == (weight.dtype, weight.shape)
        assert torch.equal(found[name].view(-1).view(torch.uint8), weight.view(-1).view(torch.uint8))
    assert sum(steps) == sum(weight.nbytes for weight in WEIGHTS.values())
    tensors = [tensor for alike in WeightFile(file).by_kind.values() for tensor in alike]
    assert len(tensors) == len(WEIGHTS)
    assert all(tensor.start % tensor.dtype.itemsize == 0 for tensor in tensors)


def test_only_equal_weights_have_the_same_digest() -> None:
    one = digest(WEIGHTS, nothing)
    assert digest(dict(reversed(WEIGHTS.items())), nothing) == one
    changed = WEIGHTS["wide"].clone()
    changed[0, 0] += 1
    others = [
        WEIGHTS | {"wide": changed},
        WEIGHTS | {"wide": WEIGHTS["wide"].view(4, 3)},
        WEIGHTS | {"half": WEIGHTS["half"].view(torch.bfloat16)},
        {("Bytes" if name == "bytes" else name): weight for name, weight in WEIGHTS.items()},
    ]
    assert len({one, *(digest(other, nothing) for other in others)}) == 1 + len(others)


def test_whoever_stops_it_leaves_what_was_there(tmp_path: Path) -> None:
    file = tmp_path / "weights.safetensors"
    write(file, WEIGHTS, nothing)
    before = file.read_bytes()

    def stop(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(file, {"other": torch.ones(3)}, stop)
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


def test_what_is_not_stored() -> None:
    assert can_store(torch.ones(2, 3))
    assert not can_store(torch.ones(2, 3).T)
    assert not can_store(torch.ones(2, dtype=torch.complex64))
    assert not can_store(torch.ones(2, device="meta"))
