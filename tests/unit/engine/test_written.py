"""Writes into weights that rest in their file, by code that torch does not tell of: none is lost, none takes memory
for good."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from offload_runtime.engine import MappedWeights
from scripts.process_memory import private_bytes

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux tells which pages were written to"
)

SIZE = (64, 256)  # 64 KiB


@pytest.fixture
def weights() -> dict[str, nn.Parameter]:
    torch.manual_seed(0)
    return {f"w{i}": nn.Parameter(torch.randn(*SIZE), requires_grad=False) for i in range(3)}


@pytest.fixture
def file(weights: dict[str, nn.Parameter], tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    save_file({name: weight.detach().clone() for name, weight in weights.items()}, path)
    return path


@pytest.fixture
def mapped(weights: dict[str, nn.Parameter], file: Path) -> MappedWeights:
    record = MappedWeights()
    record.adopt(weights, [file])
    return record


def without_asking(weight: nn.Parameter, values: torch.Tensor) -> None:
    """Write as a custom operation or a scripted function does: torch asks no subclass."""
    with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
        weight.detach().copy_(values)


def by_address(weight: nn.Parameter, values: torch.Tensor) -> None:
    """Write as a compiled extension does that was handed the address."""
    with torch._C.DisableTorchFunctionSubclass():
        address = weight.data_ptr()
    ctypes.memmove(address, values.data_ptr(), values.nbytes)


WRITES = pytest.mark.parametrize("write", [without_asking, by_address])
Write = Callable[[nn.Parameter, torch.Tensor], None]


@WRITES
@pytest.mark.parametrize(
    "read",
    [
        lambda weight: weight + 0,
        lambda weight: torch.zeros(*SIZE).copy_(weight),
        lambda weight: weight.clone(),
        lambda weight: nn.functional.embedding(torch.arange(SIZE[0]), weight),
    ],
    ids=["by an operation", "into a slot", "as a copy", "row by row"],
)
def test_what_was_written_is_what_is_read(
    weights: dict[str, nn.Parameter],
    mapped: MappedWeights,
    write: Write,
    read: Callable[[nn.Parameter], torch.Tensor],
) -> None:
    write(weights["w1"], torch.full(SIZE, 7.0))
    assert torch.equal(read(weights["w1"]), torch.full(SIZE, 7.0))


@WRITES
def test_a_weight_that_was_written_to_is_in_memory_from_the_next_use_on(
    weights: dict[str, nn.Parameter], file: Path, mapped: MappedWeights, write: Write
) -> None:
    before, content = {name: weight.clone() for name, weight in weights.items()}, file.read_bytes()
    changed = before["w1"].clone()
    changed[3, 5] += 1
    write(weights["w1"], changed)
    mapped.begin_use()
    assert [mapped.holds(weight) for weight in weights.values()] == [True, False, True]
    assert private_bytes(file) == 0
    assert torch.equal(weights["w1"], changed)
    for name in ("w0", "w2"):  # they share pages of the file with it
        assert torch.equal(weights[name], before[name])
    assert file.read_bytes() == content


@WRITES
def test_what_was_written_back_rests_on_and_takes_no_memory(
    weights: dict[str, nn.Parameter], file: Path, mapped: MappedWeights, write: Write
) -> None:
    before = weights["w1"].clone()
    write(weights["w1"], torch.full(SIZE, 7.0))
    assert mapped.bytes_at_rest(weights["w1"]) == 0
    assert before.nbytes <= private_bytes(file)
    write(weights["w1"], before)
    mapped.begin_use()
    assert mapped.holds(weights["w1"])
    assert private_bytes(file) == 0
    assert mapped.bytes_at_rest(weights["w1"]) == before.nbytes
    assert torch.equal(weights["w1"], before)


def test_only_what_a_write_has_copied_is_counted_as_memory(
    weights: dict[str, nn.Parameter], file: Path, mapped: MappedWeights
) -> None:
    weight = weights["w1"]
    with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
        weight.detach()[32, 100] = 7
    assert 0 < weight.nbytes - mapped.bytes_at_rest(weight) <= private_bytes(file) < 16 * 1024
    assert [mapped.bytes_at_rest(weights[name]) for name in ("w0", "w2")] == [weight.nbytes] * 2
    assert weight[32, 100] == 7
    assert mapped.bytes_at_rest(weight) == 0, "it is an ordinary weight now"


@pytest.mark.parametrize("part", [slice(0, 1), slice(-1, None)], ids=["first", "last"])
def test_a_change_of_one_byte_is_not_lost(
    weights: dict[str, nn.Parameter], mapped: MappedWeights, part: slice
) -> None:
    changed = weights["w1"].clone()
    changed.view(-1).view(torch.uint8)[part] ^= 1
    by_address(weights["w1"], changed)
    mapped.begin_use()
    assert torch.equal(weights["w1"].view(torch.uint8), changed.view(torch.uint8))


def test_a_write_before_the_file_was_cut_off_costs_no_more_than_the_weight(
    weights: dict[str, nn.Parameter], file: Path, mapped: MappedWeights
) -> None:
    """What has become of the pages is then the system's affair; a signal would end ComfyUI."""
    by_address(weights["w2"], torch.full(SIZE, 7.0))
    content = file.read_bytes()
    with open(file, "r+b") as opened:
        opened.truncate(4096)
        mapped.begin_use()
        opened.seek(0)
        opened.write(content)
    assert torch.isfinite(weights["w0"]).all()
