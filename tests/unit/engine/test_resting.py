"""A weight that rests in its file is an ordinary Parameter for whoever asks, whatever becomes of the file."""

from __future__ import annotations

import copy
import io
import os
import pickle
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from offload_runtime.engine import MappedWeights
from offload_runtime.errors import WeightFileError

SHAPE = (40, 8)


FORMS = {
    "the same bytes": torch.float32,
    "half precision": torch.float16,
    "bfloat16": torch.bfloat16,
    "eight bits": torch.float8_e4m3fn,
    "rows of a larger one": torch.float32,
    "rows of a larger one in eight bits": torch.float8_e4m3fn,
}
"""How the file stores the weight: in which dtype, and whether as a tensor of its own."""


def _values(number: int = 0) -> torch.Tensor:
    drawn = torch.randn(SHAPE, generator=torch.Generator().manual_seed(number))
    return drawn.to(torch.float8_e4m3fn).float()


def _store(path: Path, form: str, first: int = 0) -> None:
    """Write a file of three equal parts, of which the weight is the second."""
    stored = [_values(first + number).to(FORMS[form]) for number in (2, 0, 1)]
    if form.startswith("rows"):
        save_file({"layer.weight": torch.cat(stored)}, path)
    else:
        save_file(dict(zip(("last", "layer.weight", "other"), stored, strict=True)), path)


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def file(tmp_path: Path, form: str) -> Path:
    path = tmp_path / "model.safetensors"
    _store(path, form)
    return path


@pytest.fixture
def weight(file: Path) -> nn.Parameter:
    parameter = nn.Parameter(_values(), requires_grad=False)
    assert MappedWeights().adopt({"layer.weight": parameter}, [file]) == parameter.nbytes
    return parameter


def _rests(tensor: torch.Tensor) -> bool:
    return MappedWeights().holds(tensor)


def _saved(weight: nn.Parameter, folder: Path) -> torch.Tensor:
    save_file({"w": weight.detach()}, folder / "saved.safetensors")
    return load_file(folder / "saved.safetensors")["w"]


def _loaded(weight: nn.Parameter, folder: Path) -> torch.Tensor:
    stream = io.BytesIO()
    torch.save({"w": weight}, stream)
    stream.seek(0)
    loaded: torch.Tensor = torch.load(stream)["w"]
    return loaded


def _state(weight: nn.Parameter, folder: Path) -> torch.Tensor:
    module = nn.Module()
    module.weight = weight
    return module.state_dict()["weight"] + 0


READS: dict[str, Callable[[nn.Parameter, Path], torch.Tensor]] = {
    "an operation": lambda weight, _: weight * 1,
    "a matrix product": lambda weight, _: nn.functional.linear(torch.eye(8), weight).T,
    "a conversion": lambda weight, _: weight.double().float(),
    "clone": lambda weight, _: weight.clone(),
    "to(copy)": lambda weight, _: weight.to(torch.float32, copy=True),
    "copy_": lambda weight, _: torch.zeros(SHAPE).copy_(weight),
    "copy_ into another dtype": lambda weight, _: (
        torch.zeros(SHAPE, dtype=torch.float64).copy_(weight).float()
    ),
    "copy_ into a transposed one": lambda weight, _: torch.zeros(8, 40).T.copy_(weight),
    "look-up": lambda weight, _: nn.functional.embedding(torch.arange(40).view(1, 40), weight)[0],
    "look-up of one row": lambda weight, _: torch.stack(
        [nn.functional.embedding(torch.tensor(i), weight, padding_idx=0) for i in range(40)]
    ),
    "look-up with a norm": lambda weight, _: nn.functional.embedding(torch.arange(40), weight, max_norm=1e9),
    "look-up by the dispatcher": lambda weight, _: torch.ops.aten.embedding.default(weight, torch.arange(40)),
    "detach": lambda weight, _: weight.detach() + 0,
    "detach by the dispatcher": lambda weight, _: torch.ops.aten.detach.default(weight) + 0,
    "copy by the dispatcher": lambda weight, _: torch.ops.aten._to_copy.default(weight),
    "data": lambda weight, _: weight.data.view(-1).view(SHAPE).clone(),
    "numpy": lambda weight, _: torch.from_numpy(weight.numpy()),
    "a list": lambda weight, _: torch.tensor(weight.tolist()),
    "indexing": lambda weight, _: torch.stack([weight[i] for i in range(40)]),
    "cat": lambda weight, _: torch.cat([weight[:20], weight[20:]]),
    "in a list": lambda weight, _: torch.stack([weight])[0],
    "a new Parameter": lambda weight, _: nn.Parameter(weight, requires_grad=False).clone(),
    "deepcopy": lambda weight, _: copy.deepcopy(weight),
    "pickle": lambda weight, _: pickle.loads(pickle.dumps(weight)),
    "state_dict": _state,
    "torch.save": _loaded,
    "safetensors": _saved,
}


@pytest.mark.parametrize("how", READS)
@pytest.mark.parametrize("inference", [False, True])
def test_whoever_reads_it_gets_its_values(
    weight: nn.Parameter, tmp_path: Path, how: str, inference: bool
) -> None:
    with torch.inference_mode(inference):
        read = READS[how](weight, tmp_path)
    assert torch.equal(read.detach(), _values())
    assert torch.equal(weight, _values())


@pytest.mark.parametrize("how", [how for how in READS if "look-up" in how and "norm" not in how])
def test_rows_are_looked_up_where_it_rests(weight: nn.Parameter, tmp_path: Path, how: str) -> None:
    assert torch.equal(READS[how](weight, tmp_path), _values())
    assert _rests(weight)


@pytest.mark.parametrize("how", READS)
def test_whoever_reads_it_from_a_file_that_was_cut_off_hears_of_it(
    weight: nn.Parameter, file: Path, tmp_path: Path, how: str
) -> None:
    """Mapped memory of such a file ends the process."""
    os.truncate(file, 200)
    with pytest.raises(WeightFileError, match=r"model\.safetensors has changed.*'layer\.weight'"):
        READS[how](weight, tmp_path)
    assert isinstance(weight, nn.Parameter)


def test_it_is_the_same_parameter_and_answers_without_being_read(weight: nn.Parameter) -> None:
    module = nn.Linear(8, 40, bias=False)
    module.weight = weight
    assert isinstance(weight, nn.Parameter)
    assert (weight.shape, weight.dtype, weight.device.type) == (SHAPE, torch.float32, "cpu")
    assert (weight.nbytes, weight.numel(), weight.element_size(), weight.stride()) == (1280, 320, 4, (8, 1))
    assert weight.is_contiguous()
    assert weight.to("cpu") is weight
    assert weight.to(torch.float32) is weight
    assert weight.float() is weight
    assert sum(t.nbytes for t in module.state_dict().values()) == 1280  # how ComfyUI measures a module
    assert module.to("cpu").weight is weight
    assert next(iter(module.parameters())) is weight
    assert not weight.detach().requires_grad
    assert not isinstance(weight.detach(), nn.Parameter)
    assert nn.Parameter(weight, requires_grad=False) is not weight
    assert _rests(weight)


def test_awake_it_is_of_its_own_class_again(weight: nn.Parameter) -> None:
    alias, second = weight.detach(), nn.Parameter(weight, requires_grad=False)
    assert weight.sum() == _values().sum()
    assert (type(weight), type(alias), type(second)) == (nn.Parameter, torch.Tensor, nn.Parameter)
    assert not weight.__dict__
    with torch.no_grad():
        second.fill_(4)
    assert torch.equal(weight, alias)
    assert alias[0, 0] == 4


def test_memory_of_another_kind_takes_its_place(weight: nn.Parameter) -> None:
    """`module.to(dtype)` and packing exchange the memory of a Parameter."""
    weight.data = torch.full(SHAPE, 2.0)
    assert not _rests(weight)
    assert torch.equal(weight, torch.full(SHAPE, 2.0))


def test_a_row_that_does_not_exist_is_an_index_error(weight: nn.Parameter) -> None:
    for ids in ([40], [-1]):
        with pytest.raises(IndexError):
            nn.functional.embedding(torch.tensor(ids), weight)


def test_threads_that_wake_it_at_once_find_it_awake(weight: nn.Parameter) -> None:
    results: list[Any] = []
    threads = [threading.Thread(target=lambda: results.append(weight * 1)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8
    assert all(torch.equal(result, _values()) for result in results)


# -- the file changes ----------------------------------------------------------------------------------------------


def _replace(file: Path) -> None:
    """As every program that downloads does: beside it first, then in its place."""
    _store(file.with_suffix(".part"), "the same bytes", first=5)
    os.replace(file.with_suffix(".part"), file)


def _touch(file: Path) -> None:
    os.utime(file)


def _write_the_same_again(file: Path) -> None:
    file.write_bytes(file.read_bytes())


def _move(file: Path) -> None:
    file.rename(file.with_name("moved.safetensors"))


@pytest.mark.parametrize("change", [Path.unlink, _replace, _touch, _write_the_same_again, _move])
@pytest.mark.parametrize("how", ["copy_", "an operation", "look-up"])
def test_a_change_that_leaves_the_bytes_does_not_matter(
    weight: nn.Parameter, file: Path, tmp_path: Path, change: Callable[[Path], None], how: str
) -> None:
    change(file)
    assert torch.equal(READS[how](weight, tmp_path), _values())


def _rewrite(file: Path, *, status: os.stat_result | None = None) -> None:
    content = bytearray(file.read_bytes())
    size = (len(content) - 8 - int.from_bytes(content[:8], "little")) // 3
    content[-2 * size : -size] = reversed(content[-2 * size : -size])
    with open(file, "r+b") as opened:
        opened.write(content)
    if status is not None:
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("how", ["copy_", "an operation", "look-up"])
@pytest.mark.parametrize("keep_time", [False, True])
def test_other_bytes_in_the_same_file_are_never_taken_for_its_own(
    weight: nn.Parameter, file: Path, tmp_path: Path, how: str, keep_time: bool
) -> None:
    """`cp` writes into the file that is there; `cp -p`, `rsync --inplace` also set its time."""
    before, original = file.stat(), file.read_bytes()
    _rewrite(file, status=before if keep_time else None)
    with pytest.raises(WeightFileError, match=r"Choose Unload Models .*, or put the same file back"):
        READS[how](weight, tmp_path)
    file.write_bytes(original)
    assert torch.equal(READS[how](weight, tmp_path), _values())


def test_a_file_that_was_cut_off_and_put_back_beside_is_read_from_there(
    weight: nn.Parameter, file: Path, tmp_path: Path
) -> None:
    shutil.copy(file, tmp_path / "copy")
    os.truncate(file, 0)
    with pytest.raises(WeightFileError):
        weight.clone()
    os.replace(tmp_path / "copy", file)
    assert torch.equal(weight.clone(), _values())


def test_it_does_not_rest_in_a_file_again_that_has_changed(file: Path) -> None:
    weight = nn.Parameter(_values(), requires_grad=False)
    mapped = MappedWeights()
    mapped.adopt({"layer.weight": weight}, [file])
    weight.sum()
    os.truncate(file, 200)
    mapped.begin_use()
    assert torch.equal(weight, _values())


def test_a_tensor_of_the_file_that_is_not_aligned_is_read_as_well(tmp_path: Path) -> None:
    values = torch.randn(16, dtype=torch.float64)
    path = tmp_path / "odd.safetensors"
    save_file({"a": torch.zeros(3, dtype=torch.uint8), "b": values}, path)
    content = path.read_bytes()
    header = int.from_bytes(content[:8], "little")
    path.write_bytes(
        (header + 1).to_bytes(8, "little") + content[8 : 8 + header] + b" " + content[8 + header :]
    )
    weight = nn.Parameter(values.clone(), requires_grad=False)
    assert MappedWeights().adopt({"b": weight}, [path]) == weight.nbytes
    assert torch.equal(torch.zeros(16, dtype=torch.float64).copy_(weight), values)
    assert torch.equal(weight * 1, values)
