"""Weights that a loader left in the file, as views of its mapping: they rest there without being read."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from offload_runtime.engine import MappedWeights, mapping
from offload_runtime.errors import WeightFileError
from scripts.process_memory import mapped_ranges, read_by_this_process

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what is mapped where")

SHAPE = (512, 1024)  # 2 MiB
Weights = dict[str, nn.Parameter]


def _values() -> dict[str, torch.Tensor]:
    made = torch.Generator().manual_seed(0)
    large = {f"layers.{i}.weight": torch.randn(*SHAPE, generator=made) for i in range(4)}
    return large | {f"layers.{i}.bias": torch.randn(64, generator=made) for i in range(4)}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    save_file(_values(), path)
    return path


@pytest.fixture
def weights(file: Path) -> Weights:
    loaded = {name: nn.Parameter(t, requires_grad=False) for name, t in load_file(file).items()}
    assert all(any(p.data_ptr() in area for area in mapped_ranges(file)) for p in loaded.values())
    return loaded


@contextmanager
def reads_at_most(size: int) -> Iterator[None]:
    """Let no more bytes than that be read in between; what `/proc` says itself is among them."""
    before = read_by_this_process()
    yield
    assert read_by_this_process() - before <= size


def _write(weight: nn.Parameter, element: int, value: float) -> None:
    """As whoever merges a LoRA by hand does."""
    with torch.no_grad():
        weight.view(-1)[element] = value


def test_views_rest_where_they_are_without_being_read(weights: Weights, file: Path) -> None:
    mapped = MappedWeights()
    with reads_at_most(file.stat().st_size // 20):
        assert mapped.adopt(weights, [file]) == sum(t.nbytes for t in _values().values())
    assert all(map(mapped.holds, weights.values()))
    for name, expected in _values().items():
        assert torch.equal(weights[name].clone(), expected)
        assert torch.equal(weights[name] + 0, expected)


def test_the_place_decides_and_not_the_name(weights: Weights, file: Path) -> None:
    names = sorted(weights)
    shuffled = dict(zip(reversed(names), (weights[name] for name in names), strict=True))
    mapped = MappedWeights()
    with reads_at_most(file.stat().st_size // 20):
        mapped.adopt(shuffled, [file])
    assert all(torch.equal(weights[name].clone(), expected) for name, expected in _values().items())


@pytest.mark.parametrize("element", [0, 300_000, 512 * 1024 - 1], ids=["first", "middle", "last"])
def test_a_view_that_was_written_to_stays_in_memory(weights: Weights, file: Path, element: int) -> None:
    written, content = weights["layers.1.weight"], file.read_bytes()
    _write(written, element, 7)
    mapped = MappedWeights()
    mapped.adopt(weights, [file])
    assert [name for name, p in weights.items() if not mapped.holds(p)] == ["layers.1.weight"]
    expected = _values()
    expected["layers.1.weight"].view(-1)[element] = 7
    assert all(torch.equal(weights[name].clone(), expected[name]) for name in expected)
    assert file.read_bytes() == content


def test_of_weights_on_one_page_only_the_one_that_was_written_to_stays(weights: Weights, file: Path) -> None:
    _write(weights["layers.2.bias"], 5, 7)
    mapped = MappedWeights()
    mapped.adopt(weights, [file])
    assert [name for name, p in weights.items() if not mapped.holds(p)] == ["layers.2.bias"]


def test_what_was_written_back_rests(weights: Weights, file: Path) -> None:
    written = weights["layers.1.weight"]
    before = written.view(-1)[1000].item()
    _write(written, 1000, 7)
    _write(written, 1000, before)
    mapped = MappedWeights()
    with reads_at_most(file.stat().st_size // 20):
        mapped.adopt(weights, [file])
    assert mapped.holds(written)
    assert torch.equal(written.clone(), _values()["layers.1.weight"])


@pytest.mark.parametrize("missing", ["_MAPS", "_PAGEMAP"])
def test_where_the_system_tells_nothing_they_are_compared(
    weights: Weights, file: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setattr(mapping, missing, "/proc/self/is-not-there")
    _write(weights["layers.1.weight"], 1000, 7)
    mapped = MappedWeights()
    mapped.adopt(weights, [file])
    assert [name for name, p in weights.items() if not mapped.holds(p)] == ["layers.1.weight"]


@pytest.mark.parametrize("same", [True, False])
def test_views_of_a_file_that_was_replaced_before_are_compared_with_the_new_one(
    weights: Weights, file: Path, same: bool
) -> None:
    new = {name: t if same else -t for name, t in _values().items()}
    save_file(new, file.with_suffix(".part"))
    os.replace(file.with_suffix(".part"), file)
    mapped = MappedWeights()
    mapped.adopt(weights, [file])
    assert [mapped.holds(p) for p in weights.values()] == [same] * len(weights)
    assert all(torch.equal(weights[name].clone(), expected) for name, expected in _values().items())


def test_views_of_a_file_that_was_cut_off_before_are_not_looked_at(weights: Weights, file: Path) -> None:
    """Whoever looks is ended by a signal."""
    order = sorted(weights, key=lambda name: weights[name].data_ptr())
    os.truncate(file, file.stat().st_size - weights[order[-1]].nbytes - 4096)
    mapped = MappedWeights()
    mapped.adopt(weights, [file])
    assert not mapped.holds(weights[order[-1]])
    assert torch.equal(weights[order[0]].clone(), _values()[order[0]])


def test_views_of_another_file_that_was_cut_off_are_not_touched_either(
    weights: Weights, file: Path, tmp_path: Path
) -> None:
    """Two files of one model: each weight is looked for in both."""
    save_file({name: -t for name, t in _values().items()}, tmp_path / "other.safetensors")
    os.truncate(file, 4096)
    mapped = MappedWeights()
    mapped.adopt(weights, [tmp_path / "other.safetensors", file])
    gone = [mapped.holds(weight) for name, weight in weights.items() if name.endswith(".weight")]
    assert gone == [False] * 4


def test_views_of_one_of_several_files_rest_in_theirs(weights: Weights, file: Path, tmp_path: Path) -> None:
    save_file({name: -t for name, t in _values().items()}, tmp_path / "other.safetensors")
    mapped = MappedWeights()
    with reads_at_most(2 * file.stat().st_size // 20):  # there are two files
        mapped.adopt(weights, [tmp_path / "other.safetensors", file])
    assert all(map(mapped.holds, weights.values()))


# -- the file changes ----------------------------------------------------------------------------------------------


def _rewrite(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-4096:] = reversed(content[-4096:])
    with open(file, "r+b") as opened:
        opened.write(content)


def _rewrite_and_keep_the_time(file: Path) -> None:
    before = file.stat()
    _rewrite(file)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def _cut_off(file: Path) -> None:
    os.truncate(file, 4096)


def _move(file: Path) -> None:
    file.rename(file.with_name("moved.safetensors"))


def _replace(file: Path) -> None:
    file.with_suffix(".part").write_bytes(b"another file")
    os.replace(file.with_suffix(".part"), file)


READS: dict[str, Callable[[nn.Parameter], torch.Tensor]] = {
    "copy_": lambda weight: torch.zeros(*SHAPE).copy_(weight),
    "an operation": lambda weight: weight + 0,
    "look-up": lambda weight: nn.functional.embedding(torch.tensor([3, 5, SHAPE[0] - 1]), weight),
}


@pytest.mark.parametrize("change", [_rewrite, _rewrite_and_keep_the_time, _cut_off])
@pytest.mark.parametrize("how", READS)
def test_a_change_before_the_first_read_is_an_error_that_says_what_to_do(
    weights: Weights, file: Path, change: Callable[[Path], None], how: str
) -> None:
    mapped = MappedWeights()
    mapped.adopt(weights, [file])
    change(file)
    last = max(weights.values(), key=lambda weight: weight.rest.stored.start)  # type: ignore[attr-defined]
    with pytest.raises(WeightFileError, match=r"has changed on disk.*[Cc]hoose Unload Models"):
        READS[how](last) if last.ndim == 2 else last + 0


def _rewrite_the_same(file: Path) -> None:
    file.write_bytes(file.read_bytes())


def _replace_by_a_copy(file: Path) -> None:
    file.with_suffix(".part").write_bytes(file.read_bytes())
    os.replace(file.with_suffix(".part"), file)


def _cut_off_and_replace_by_a_copy(file: Path) -> None:
    content = file.read_bytes()
    os.truncate(file, 0)
    file.unlink()
    file.write_bytes(content)


def _make_read_only(file: Path) -> None:
    file.chmod(0o444)


NO_CHANGES: list[Callable[[Path], None]] = [
    *(os.utime, _make_read_only, _move, _replace, Path.unlink),
    *(_rewrite_the_same, _replace_by_a_copy, _cut_off_and_replace_by_a_copy),
]


@pytest.mark.parametrize("change", NO_CHANGES)
@pytest.mark.parametrize("how", READS)
@pytest.mark.parametrize("read_before", [True, False])
def test_a_change_that_leaves_the_bytes_does_not_matter(
    weights: Weights, file: Path, change: Callable[[Path], None], how: str, read_before: bool
) -> None:
    mapped = MappedWeights()
    mapped.adopt(weights, [file])
    weight = weights["layers.2.weight"]
    expected = READS[how](nn.Parameter(_values()["layers.2.weight"], requires_grad=False))
    if read_before:
        weight.clone()
    change(file)
    assert torch.equal(READS[how](weight), expected)
    mapped.take_checksums()
    assert mapped.unread == 0
    assert torch.equal(READS[how](weight), expected)


@pytest.mark.parametrize("read_before", [True, False])
def test_of_a_file_that_was_touched_only_the_rows_that_are_looked_up_are_read(
    weights: Weights, file: Path, read_before: bool
) -> None:
    MappedWeights().adopt(weights, [file])
    table = weights["layers.2.weight"]
    if read_before:
        table.clone()
    os.utime(file)
    READS["look-up"](table)
    with reads_at_most(table.nbytes // 10):
        READS["look-up"](table)


def test_what_was_woken_rests_again_in_a_file_that_was_touched(weights: Weights, file: Path) -> None:
    mapped = MappedWeights()
    mapped.adopt(weights, [file])
    os.utime(file)
    weight = weights["layers.2.weight"]
    weight.add_(0)
    assert not mapped.holds(weight)
    mapped.begin_use()
    assert mapped.holds(weight)
    assert torch.equal(weight.clone(), _values()["layers.2.weight"])


def _other_model(file: Path) -> None:
    """Write another model of the same geometry over it: its header is the same."""
    content = file.read_bytes()
    save_file({name: -t for name, t in _values().items()}, file.with_suffix(".part"))
    other = file.with_suffix(".part").read_bytes()
    assert len(other) == len(content)
    with open(file, "r+b") as opened:
        opened.write(other)


def test_another_model_of_the_same_geometry_is_never_taken_for_the_first(
    weights: Weights, file: Path
) -> None:
    mapped = MappedWeights()
    mapped.adopt(weights, [file])
    weights["layers.1.weight"].clone()
    original = file.read_bytes()
    _other_model(file)
    for weight in weights.values():
        with pytest.raises(WeightFileError, match="has changed on disk"):
            weight.clone()
    mapped.take_checksums()
    file.write_bytes(original)
    assert all(torch.equal(weights[name].clone(), expected) for name, expected in _values().items())


def test_nor_is_a_part_of_it_once_the_file_was_found_to_be_the_same(weights: Weights, file: Path) -> None:
    MappedWeights().adopt(weights, [file])
    os.utime(file)
    weights["layers.1.weight"].clone()
    _other_model(file)
    for weight in weights.values():
        with pytest.raises(WeightFileError, match="has changed on disk"):
            weight.clone()


def test_nor_does_it_where_the_checksums_were_taken_without_a_use(weights: Weights, file: Path) -> None:
    mapped = MappedWeights()
    mapped.adopt(weights, [file])
    assert mapped.unread == len(weights)
    mapped.take_checksums()
    assert mapped.unread == 0
    _replace(file)
    assert all(torch.equal(weights[name].clone(), expected) for name, expected in _values().items())


@pytest.mark.parametrize("change", [_rewrite, _rewrite_and_keep_the_time])
def test_checksums_are_not_taken_of_a_file_that_has_changed(
    weights: Weights, file: Path, change: Callable[[Path], None]
) -> None:
    mapped = MappedWeights()
    mapped.adopt(weights, [file])
    change(file)
    mapped.take_checksums()
    last = max(weights.values(), key=lambda weight: weight.rest.stored.start)  # type: ignore[attr-defined]
    with pytest.raises(WeightFileError):
        last.clone()


@pytest.mark.parametrize("change", [_rewrite, _rewrite_and_keep_the_time])
def test_after_the_first_read_other_bytes_are_never_taken_for_its_own(
    weights: Weights, file: Path, change: Callable[[Path], None]
) -> None:
    MappedWeights().adopt(weights, [file])
    last = max(weights.values(), key=lambda weight: weight.rest.stored.start)  # type: ignore[attr-defined]
    expected, original = last.clone(), file.read_bytes()
    change(file)
    with pytest.raises(WeightFileError, match=", or put the same file back"):
        last.clone()
    file.write_bytes(original)
    assert torch.equal(last.clone(), expected)


def test_a_write_after_it_was_laid_is_what_is_read(weights: Weights, file: Path) -> None:
    mapped = MappedWeights()
    mapped.adopt(weights, [file])
    weight, changed = weights["layers.1.weight"], _values()["layers.1.weight"] * 2
    with torch._C.DisableTorchFunctionSubclass():
        ctypes.memmove(weight.data_ptr(), changed.data_ptr(), changed.nbytes)
    assert torch.equal(weight.clone(), changed)
    mapped.begin_use()
    assert torch.equal(weight, changed)
