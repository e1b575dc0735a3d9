"""Weights that rest in their safetensors file: the same objects, the same values, less memory."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from offload_runtime.engine import MappedWeights, PackedWeights
from offload_runtime.errors import WeightFileError
from scripts.process_memory import read_by_this_process

MIB = 1024 * 1024


@pytest.fixture
def weights() -> dict[str, nn.Parameter]:
    torch.manual_seed(0)
    return {
        f"model.layers.{i}.weight": nn.Parameter(torch.randn(64, 64), requires_grad=False) for i in range(3)
    }


@pytest.fixture
def file(weights: dict[str, nn.Parameter], tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    save_file({f"other.prefix.{name}": p.detach().clone() for name, p in weights.items()}, path)
    return path


def test_equal_weights_rest_in_the_file_and_stay_the_same_objects(
    weights: dict[str, nn.Parameter], file: Path
) -> None:
    ids, values = [id(p) for p in weights.values()], [p.clone() for p in weights.values()]
    mapped = MappedWeights()
    assert mapped.adopt(weights, [file]) == 3 * 64 * 64 * 4
    assert [id(p) for p in weights.values()] == ids
    assert all(mapped.holds(p) and torch.equal(p, v) for p, v in zip(weights.values(), values, strict=True))


def test_release_copies_them_back_into_memory(weights: dict[str, nn.Parameter], file: Path) -> None:
    values = [p.clone() for p in weights.values()]
    mapped = MappedWeights()
    mapped.adopt(weights, [file])
    mapped.release(weights.values())
    assert not any(mapped.holds(p) for p in weights.values())
    assert all(torch.equal(p, v) for p, v in zip(weights.values(), values, strict=True))


def test_a_weight_that_differs_by_one_bit_stays_in_memory(
    weights: dict[str, nn.Parameter], file: Path
) -> None:
    changed = weights["model.layers.1.weight"]
    changed[0, 0] += 1
    mapped = MappedWeights()
    assert mapped.adopt(weights, [file]) == 2 * 64 * 64 * 4
    assert not mapped.holds(changed)


def test_a_weight_that_the_loader_converted_stays_in_memory(file: Path) -> None:
    half = {
        "model.layers.0.weight": nn.Parameter(torch.zeros(64, 64, dtype=torch.float16), requires_grad=False)
    }
    assert MappedWeights().adopt(half, [file]) == 0


def _with_header(header: str) -> bytes:
    return len(header).to_bytes(8, "little") + header.encode() + bytes(16 * 1024)


HOSTILE = [
    "[]",
    "[[1, 2]]",
    "null",
    '{"w": 1}',
    '{"w": {"dtype": "F32"}}',
    '{"w": {"dtype": [], "shape": [64, 64], "data_offsets": [0, 16384]}}',
    '{"w": {"dtype": "F32", "shape": [64, 64], "data_offsets": [0]}}',
    '{"w": {"dtype": "F32", "shape": [64, 64], "data_offsets": [0, Infinity]}}',
    '{"w": {"dtype": "F32", "shape": [64, 64], "data_offsets": [-8, 16376]}}',
    '{"w": {"dtype": "F32", "shape": [64, 64], "data_offsets": [8, 16392]}}',
    '{"w": {"dtype": "F32", "shape": [64, 64], "data_offsets": [0, 16]}}',
    '{"w": {"dtype": "F99", "shape": [64, 64], "data_offsets": [0, 16384]}}',
    "[" * 100_000,
]


@pytest.mark.parametrize(
    "content", [b"", b"not a safetensors file", b"\xff" * 64, *map(_with_header, HOSTILE)], ids=range(16)
)
def test_a_file_that_is_no_safetensors_file_is_passed_over(
    weights: dict[str, nn.Parameter], file: Path, tmp_path: Path, content: bytes
) -> None:
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(content)
    missing = tmp_path / "missing.safetensors"
    assert MappedWeights().adopt(weights, [broken, missing, file]) == 3 * 64 * 64 * 4


@pytest.mark.parametrize("through", ["the parameter", "its data", "an earlier alias"])
def test_a_write_stays_in_memory_and_is_never_undone(
    weights: dict[str, nn.Parameter], file: Path, through: str
) -> None:
    """Hook keyframes write into weights in place; the file must not change, and the write must not be lost."""
    content = file.read_bytes()
    mapped = MappedWeights()
    mapped.adopt(weights, [file])
    written = weights["model.layers.0.weight"]
    with torch.inference_mode():
        alias = written.detach()
        {"the parameter": written, "its data": written.data, "an earlier alias": alias}[through].fill_(7)
    mapped.begin_use()
    assert not mapped.holds(written)
    assert torch.equal(written, torch.full((64, 64), 7.0))
    assert torch.equal(alias, written)
    assert file.read_bytes() == content


def test_weights_made_in_inference_mode_are_adopted_outside_it_and_inside(file: Path, tmp_path: Path) -> None:
    """ComfyUI's loaders run in inference mode."""
    with torch.inference_mode():
        weight = nn.Parameter(torch.randn(8, 8), requires_grad=False)
        save_file({"w": weight.clone()}, tmp_path / "w.safetensors")
    mapped = MappedWeights()
    assert mapped.adopt({"w": weight}, [tmp_path / "w.safetensors"]) == weight.nbytes
    with torch.inference_mode():
        mapped.release([weight])
        assert mapped.adopt({"w": weight}, [tmp_path / "w.safetensors"]) == weight.nbytes


def test_weights_with_equal_bytes_are_not_one_weight(tmp_path: Path) -> None:
    """Norms of ones, biases of zeros: a write to one of them is no write to the others."""
    ones = {f"norm{i}.weight": nn.Parameter(torch.ones(8), requires_grad=False) for i in range(3)}
    save_file({f"scale_{i}": torch.ones(8) for i in range(3)}, tmp_path / "w.safetensors")
    assert MappedWeights().adopt(ones, [tmp_path / "w.safetensors"]) == 3 * 8 * 4
    first, *others = ones.values()
    with torch.no_grad():
        first.fill_(5)
    assert torch.equal(first, torch.full((8,), 5.0))
    assert all(torch.equal(other, torch.ones(8)) for other in others)


def test_tied_weights_stay_tied(tmp_path: Path) -> None:
    table = nn.Parameter(torch.randn(8, 8), requires_grad=False)
    head = nn.Parameter(table.data, requires_grad=False)  # another object, the same memory
    save_file({"table": table.detach().clone()}, tmp_path / "w.safetensors")
    mapped = MappedWeights()
    mapped.adopt({"table": table, "head": head}, [tmp_path / "w.safetensors"])
    assert mapped.holds(table)
    assert mapped.holds(head)
    with torch.no_grad():
        head.fill_(3)
    assert torch.equal(table, torch.full((8, 8), 3.0))


@pytest.mark.parametrize("what", ["a part", "the whole"])
def test_a_weight_that_shares_memory_with_a_tensor_that_stays_does_not_rest(
    tmp_path: Path, what: str
) -> None:
    weight = nn.Parameter(torch.randn(8, 8), requires_grad=False)
    shared = weight.data if what == "the whole" else weight.data[2:4]
    save_file({"w": weight.detach().clone()}, tmp_path / "w.safetensors")
    mapped = MappedWeights()
    assert mapped.adopt({"w": weight}, [tmp_path / "w.safetensors"], [weight, shared]) == 0
    shared.fill_(2)
    assert (weight == 2).sum() >= 16


def test_a_zero_of_another_sign_is_another_weight(tmp_path: Path) -> None:
    weight = nn.Parameter(-torch.zeros(8), requires_grad=False)
    save_file({"w": torch.zeros(8)}, tmp_path / "w.safetensors")
    assert MappedWeights().adopt({"w": weight}, [tmp_path / "w.safetensors"]) == 0


def test_what_was_only_read_rests_again_at_the_next_use(weights: dict[str, nn.Parameter], file: Path) -> None:
    mapped = MappedWeights()
    mapped.adopt(weights, [file])
    values = {name: p.sum() for name, p in weights.items()}  # another clone of the model ran
    assert not any(map(mapped.holds, weights.values()))
    mapped.begin_use()
    assert all(map(mapped.holds, weights.values()))
    assert all(torch.equal(p.sum(), values[name]) for name, p in weights.items())


def test_released_all_the_file_is_closed(weights: dict[str, nn.Parameter], file: Path) -> None:
    mapped = MappedWeights()
    mapped.adopt(weights, [file])
    expected = [p.clone() for p in weights.values()]
    mapped.release_all()
    os.truncate(file, 100)
    mapped.begin_use()
    assert not any(map(mapped.holds, weights.values()))
    assert all(torch.equal(p, v) for p, v in zip(weights.values(), expected, strict=True))
    if sys.platform == "linux":
        assert str(file) not in Path("/proc/self/maps").read_text()
        assert str(file) not in [os.path.realpath(fd) for fd in Path("/proc/self/fd").iterdir()]


def test_what_is_left_of_a_file_is_released_and_the_rest_is_an_error(
    weights: dict[str, nn.Parameter], file: Path
) -> None:
    mapped, expected = MappedWeights(), [p.clone() for p in weights.values()]
    mapped.adopt(weights, [file])
    os.truncate(file, file.stat().st_size - 4)
    with pytest.raises(WeightFileError):
        mapped.release_all()
    assert [mapped.holds(p) for p in weights.values()] == [False, False, True]
    assert all(torch.equal(p, v) for p, v in list(zip(weights.values(), expected, strict=True))[:2])
    assert mapped.resting_bytes == 64 * 64 * 4


def test_weights_that_rest_are_packed_straight_from_the_file(
    weights: dict[str, nn.Parameter], file: Path
) -> None:
    """The next policy wants them in memory."""
    masters, expected = list(weights.values()), [p.clone() for p in weights.values()]
    mapped, packed = MappedWeights(), PackedWeights(lambda block: False)
    mapped.adopt(weights, [file])
    packed.forget(masters)
    assert packed.block(masters) is None
    assert all(map(mapped.holds, masters))
    packed.pack(masters)
    assert packed.block(masters) is not None
    assert not any(map(mapped.holds, masters))
    assert all(torch.equal(p, v) for p, v in zip(masters, expected, strict=True))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("alike", ["their beginning", "their end", "nothing"])
def test_tensors_of_the_same_shape_are_told_apart_without_reading_them(tmp_path: Path, alike: str) -> None:
    """Where the names do not help, nearly every tensor that is tried is another one."""
    values = [torch.randn(1024, 256) for _ in range(16)]  # 1 MiB each
    for value in values:
        half = {"their beginning": slice(0, 500), "their end": slice(524, 1024), "nothing": slice(0, 0)}
        value[half[alike]] = 0
    path = tmp_path / "model.safetensors"
    save_file({f"{i:02}": value for i, value in enumerate(values)}, path)
    weights = {str(id(v)): nn.Parameter(v, requires_grad=False) for v in reversed(values)}
    before = read_by_this_process()
    assert MappedWeights().adopt(weights, [path]) == 16 * MIB
    assert read_by_this_process() - before < 20 * MIB


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_weight_that_rests_takes_no_memory_and_none_to_be_copied_or_looked_up(tmp_path: Path) -> None:
    path = tmp_path / "large.safetensors"
    table = nn.Parameter(torch.randn(16 * 1024, 1024), requires_grad=False)  # 64 MiB
    save_file({"w": table.detach()}, path)
    slot, rows = torch.zeros(16 * 1024, 1024), table[[5, 5, 9]].clone()
    before = _memory("RssAnon"), _memory("RssFile")
    mapped = MappedWeights()
    mapped.adopt({"w": table}, [path])
    slot.copy_(table)
    assert torch.equal(nn.functional.embedding(torch.tensor([5, 5, 9]), table), rows)
    assert before[0] - _memory("RssAnon") > 48 * MIB
    assert _memory("RssFile") - before[1] < 16 * MIB
    assert torch.equal(slot[[5, 5, 9]], rows)
    assert mapped.holds(table)


def _memory(what: str) -> int:
    match = re.search(rf"^{what}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert match is not None
    return int(match[1]) * 1024
