"""Weights that the file has in a narrower dtype, or inside of a larger tensor: they rest there, too."""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from offload_runtime.engine import MappedWeights
from offload_runtime.engine.weight_file import WeightFile
from scripts.process_memory import read_by_this_process

MIB = 1024 * 1024
FP8, FP16, BF16, FP32 = torch.float8_e4m3fn, torch.float16, torch.bfloat16, torch.float32


def _parameter(values: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(values, requires_grad=False)


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def _adopt(weight: nn.Parameter, stored: dict[str, torch.Tensor], folder: Path) -> MappedWeights:
    save_file(stored, folder / "model.safetensors")
    mapped = MappedWeights()
    mapped.adopt({"layer.weight": weight}, [folder / "model.safetensors"])
    return mapped


@pytest.mark.parametrize(
    ("stored", "used"),
    [(FP8, FP16), (FP8, BF16), (FP8, FP32), (torch.float8_e5m2, FP16), (FP16, FP32), (BF16, FP32)],
)
def test_a_weight_that_was_converted_without_loss_rests(
    tmp_path: Path, stored: torch.dtype, used: torch.dtype
) -> None:
    narrow = _random(300, 500).to(stored)
    weight, expected = _parameter(narrow.to(used)), narrow.to(used)
    mapped = _adopt(weight, {"w": narrow}, tmp_path)
    assert mapped.holds(weight)
    assert mapped.bytes_at_rest(weight) == mapped.resting_bytes == expected.nbytes
    assert (weight.dtype, weight.shape) == (used, (300, 500))
    assert torch.equal(torch.zeros_like(expected).copy_(weight), expected)
    assert torch.equal(nn.functional.embedding(torch.tensor([7, 7, 2]), weight), expected[[7, 7, 2]])
    assert mapped.holds(weight)
    mapped.release([weight])
    assert type(weight) is nn.Parameter
    assert torch.equal(weight, expected)


@pytest.mark.parametrize(
    ("stored", "used"), [(FP32, FP16), (FP32, BF16), (FP16, BF16), (BF16, FP16), (FP16, FP8)]
)
def test_one_that_was_rounded_stays_in_memory(tmp_path: Path, stored: torch.dtype, used: torch.dtype) -> None:
    values = torch.ones(64, 64)  # which happen to be the same
    weight = _parameter(values.to(used))
    assert not _adopt(weight, {"w": values.to(stored)}, tmp_path).holds(weight)


@pytest.mark.parametrize("at", [(0, 0), (150, 3), (299, 499)])
def test_one_that_differs_in_a_single_value_stays_in_memory(tmp_path: Path, at: tuple[int, int]) -> None:
    narrow = _random(1000, 500).to(FP8)
    weight = _parameter(narrow.to(FP16))
    weight[at] = 3.14
    assert not _adopt(weight, {"w": narrow}, tmp_path).holds(weight)


def test_a_file_that_has_the_very_bytes_too_is_read_without_converting(tmp_path: Path) -> None:
    narrow = _random(64, 64).to(FP8)
    weight = _parameter(narrow.float())
    _adopt(weight, {"layer.weight": narrow, "copy": narrow.float()}, tmp_path)
    with torch._C.DisableTorchFunctionSubclass():
        assert torch.equal(weight.detach() + 0, narrow.float())


def _scripted(weight: nn.Parameter) -> torch.Tensor:
    with torch._C.DisableTorchFunctionSubclass():
        return weight + 0


def _by_address(weight: nn.Parameter) -> bytes:
    with torch._C.DisableTorchFunctionSubclass():
        return ctypes.string_at(weight.data_ptr(), 8)


@pytest.mark.parametrize("read", [_scripted, _by_address])
def test_code_that_goes_round_torch_gets_an_error_and_no_wrong_values(
    tmp_path: Path, read: Callable[[nn.Parameter], object]
) -> None:
    narrow = _random(64, 64).to(FP8)
    weight = _parameter(narrow.half())
    _adopt(weight, {"w": narrow}, tmp_path)
    for tensor in (weight, weight.detach(), weight.data):
        with pytest.raises(RuntimeError, match="Choose another placement"):
            read(tensor)
    assert torch.equal(weight + 0, narrow.half())
    assert read(weight) is not None


def test_what_was_read_rests_again_and_what_was_written_does_not(tmp_path: Path) -> None:
    narrow = _random(64, 64).to(FP8)
    weight = _parameter(narrow.half())
    mapped = _adopt(weight, {"w": narrow}, tmp_path)
    weight.sum()
    assert not mapped.holds(weight)
    mapped.begin_use()
    assert mapped.holds(weight)
    with torch.no_grad():
        weight[5, 5] = 100
    mapped.begin_use()
    assert not mapped.holds(weight)
    assert weight[5, 5] == 100
    assert torch.equal(weight[6:], narrow[6:].half())


def test_tied_weights_stay_tied(tmp_path: Path) -> None:
    narrow = _random(8, 8).to(FP8)
    table = _parameter(narrow.half())
    head = _parameter(table.data)
    save_file({"table": narrow}, tmp_path / "w.safetensors")
    mapped = MappedWeights()
    mapped.adopt({"table": table, "head": head}, [tmp_path / "w.safetensors"])
    assert mapped.holds(table)
    assert mapped.holds(head)
    with torch.no_grad():
        head.fill_(3)
    assert torch.equal(table, torch.full((8, 8), 3.0, dtype=FP16))


def test_weights_made_in_inference_mode_rest_outside_it_and_inside(tmp_path: Path) -> None:
    with torch.inference_mode():
        narrow = _random(16, 16).to(FP8)
        weight = _parameter(narrow.half())
        mapped = _adopt(weight, {"w": narrow}, tmp_path)
        assert torch.equal(torch.zeros(16, 16, dtype=FP16).copy_(weight), narrow.half())
    mapped.release([weight])
    with torch.inference_mode():
        mapped.begin_use([weight])
        assert torch.equal(weight + 0, narrow.half())


class Scaled(torch.Tensor):
    """A quantised weight: values and a scale, by torch's protocol."""

    values: torch.Tensor
    scale: torch.Tensor

    @staticmethod
    def __new__(cls, values: torch.Tensor, scale: torch.Tensor) -> Scaled:
        whole = torch.Tensor._make_wrapper_subclass(cls, values.shape, dtype=torch.float32)
        whole.values, whole.scale = values, scale
        return whole

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["values", "scale"], None

    @classmethod
    def __tensor_unflatten__(
        cls, inner: dict[str, torch.Tensor], context: object, size: object, stride: object
    ) -> Scaled:
        return cls(inner["values"], inner["scale"])

    @classmethod
    def __torch_dispatch__(
        cls, func: object, types: object, args: tuple[Scaled, ...] = (), kwargs: object = None
    ) -> Scaled:
        return cls(args[0].values, args[0].scale)


def test_parts_of_a_quantised_weight_rest_only_as_they_are(tmp_path: Path) -> None:
    """Its class takes them without asking."""
    values, scale = _random(64, 64).to(FP8), _random(64).to(FP16)
    weight = _parameter(Scaled(values.clone(), scale.float()))
    mapped = _adopt(weight, {"values": values, "scale": scale}, tmp_path)
    assert mapped.holds(weight)
    assert mapped.bytes_at_rest(weight) == values.nbytes


# -- parts of larger tensors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("stored", [FP16, FP8])
def test_split_projections_rest_in_the_tensor_that_they_were_split_from(
    tmp_path: Path, stored: torch.dtype
) -> None:
    """OpenCLIP has one tensor of three projections; others have fewer keys than queries."""
    fused, bias = _random(96, 16).to(stored), _random(96).to(stored)
    rows = {"q": slice(0, 64), "k": slice(64, 80), "v": slice(80, 96)}
    weights = {
        f"{name}.{kind}": _parameter(whole[part].to(FP16).clone())
        for name, part in rows.items()
        for kind, whole in (("weight", fused), ("bias", bias))
    }
    save_file({"in_proj_weight": fused, "in_proj_bias": bias}, tmp_path / "model.safetensors")
    mapped = MappedWeights()
    assert mapped.adopt(weights, [tmp_path / "model.safetensors"]) == 2 * 96 * 17
    for name, part in rows.items():
        assert torch.equal(weights[f"{name}.weight"] + 0, fused[part].to(FP16))
        assert torch.equal(weights[f"{name}.bias"] + 0, bias[part].to(FP16))


def test_a_part_that_differs_in_its_last_value_stays_in_memory(tmp_path: Path) -> None:
    fused = _random(96, 16)
    weight = _parameter(fused[32:64].clone())
    weight[-1, -1] = 3.14
    assert not _adopt(weight, {"in_proj_weight": fused}, tmp_path).holds(weight)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_part_that_is_a_view_of_the_file_is_not_read(tmp_path: Path) -> None:
    fused = _random(3 * 1024, 256)
    path = tmp_path / "model.safetensors"
    save_file({"in_proj_weight": fused}, path)
    file = WeightFile(path)
    ((stored,),) = file.by_kind.values()
    there = file.map().view(stored.start, fused.numel(), FP32).view(fused.shape)
    weights = {name: _parameter(there[n * 1024 : (n + 1) * 1024]) for n, name in enumerate("qkv")}
    before = read_by_this_process()
    assert MappedWeights().adopt(weights, [path]) == fused.nbytes
    assert read_by_this_process() - before < MIB


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_parts_are_told_apart_without_reading_them(tmp_path: Path) -> None:
    """A file with many larger tensors, and as many weights of which it has nothing."""
    stored = {f"{n:03}": _random(n + 1, 1)[0] * _random(64, 256) for n in range(100)}  # 6.4 MB
    weights = {f"{n:03}": _parameter(_random(16, 256 + n)[:, :256].contiguous()) for n in range(100)}
    save_file(stored, tmp_path / "model.safetensors")
    before = read_by_this_process()
    assert MappedWeights().adopt(weights, [tmp_path / "model.safetensors"]) == 0
    assert read_by_this_process() - before < MIB


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_converted_weight_takes_no_memory_and_none_to_be_copied(tmp_path: Path) -> None:
    _given_back_by_64_mib(tmp_path / "first.safetensors")  # tables, threads and their heaps: once a process
    assert _given_back_by_64_mib(tmp_path / "model.safetensors") > 48 * MIB


def _given_back_by_64_mib(path: Path) -> int:
    narrow = _random(16 * 1024, 1024).to(FP8)
    weight, slot = _parameter(narrow.float()), torch.zeros(16 * 1024, 1024)
    save_file({"w": narrow}, path)
    del narrow
    before = _anonymous()
    mapped = MappedWeights()
    mapped.adopt({"w": weight}, [path])
    slot.copy_(weight)
    after = _anonymous()
    assert mapped.holds(weight)
    return before - after


def _anonymous() -> int:
    match = re.search(r"^RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert match is not None
    return int(match[1]) * 1024
