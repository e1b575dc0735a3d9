"""Weights that view their safetensors file: the same objects, the same values, less memory."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from offload_runtime.engine import MappedTier, MappedWeights, can_page_out, mapped_weights

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


def test_equal_weights_view_the_file_and_stay_the_same_objects(
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


@pytest.mark.parametrize("content", [b"", b"not a safetensors file", b"\xff" * 64])
def test_a_file_that_is_no_safetensors_file_is_passed_over(
    weights: dict[str, nn.Parameter], file: Path, tmp_path: Path, content: bytes
) -> None:
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(content)
    missing = tmp_path / "missing.safetensors"
    assert MappedWeights().adopt(weights, [broken, missing, file]) == 3 * 64 * 64 * 4


def test_a_write_stays_in_memory_and_survives_being_paged_out(
    weights: dict[str, nn.Parameter], file: Path
) -> None:
    """Hook keyframes write into weights in place; the file must not change, and the write must not be lost."""
    content = file.read_bytes()
    mapped = MappedWeights()
    mapped.adopt(weights, [file])
    written = weights["model.layers.0.weight"]
    with torch.inference_mode():
        written.fill_(7)
    MappedTier(mapped).finish([written])
    assert torch.equal(written, torch.full((64, 64), 7.0))
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


def test_everybody_who_uses_a_model_sees_the_same_record() -> None:
    one, other = nn.Linear(2, 2), nn.Linear(2, 2)
    assert mapped_weights(one) is mapped_weights(one)
    assert mapped_weights(one) is not mapped_weights(other)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and needs MADV_PAGEOUT")
def test_adopting_gives_the_anonymous_copy_back_and_paging_out_gives_the_pages_back(tmp_path: Path) -> None:
    assert can_page_out()
    path = tmp_path / "large.safetensors"
    weight = nn.Parameter(torch.randn(16 * MIB), requires_grad=False)  # 64 MiB
    save_file({"w": weight.detach()}, path)
    anonymous = _memory("RssAnon")
    mapped = MappedWeights()
    mapped.adopt({"w": weight}, [path])
    assert anonymous - _memory("RssAnon") > 48 * MIB
    paged_out = _memory("RssFile")
    weight.sum()
    assert _memory("RssFile") - paged_out > 48 * MIB
    MappedTier(mapped).finish([weight])
    assert _memory("RssFile") - paged_out < 16 * MIB


def _memory(what: str) -> int:
    match = re.search(rf"^{what}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert match is not None
    return int(match[1]) * 1024
