"""How large the weights in a file are, from its header."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from offload_runtime.engine import file_sizes
from offload_runtime.engine.file_sizes import FileSizes

PREFIXES = ("model.", "vae.")


def test_the_sizes_are_those_of_the_weights_and_of_their_parts(tmp_path: Path) -> None:
    path = tmp_path / "all.safetensors"
    weights = {
        "model.a": torch.zeros(100),
        "model.b": torch.zeros(7, dtype=torch.bfloat16),
        "text.c": torch.zeros(5),
    }
    save_file(weights, path)
    assert file_sizes(path, PREFIXES) == FileSizes(434, {"model.": 414})


def test_only_the_header_is_read_and_any_dtype_is_known(tmp_path: Path) -> None:
    """The file is a hole of 12 GB: nobody could read that within the test."""
    path = tmp_path / "large.safetensors"
    size = 12 * 10**9
    header = json.dumps({"w": {"dtype": "F4_NEW", "shape": [size], "data_offsets": [0, size]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    os.truncate(path, 8 + len(header) + size)
    assert file_sizes(path) == FileSizes(size, {})


def test_a_file_that_has_changed_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "new.safetensors"
    for count in (10, 20):
        save_file({"w": torch.zeros(count)}, path)
        assert file_sizes(path) == FileSizes(4 * count, {})


@pytest.mark.parametrize("name", ["a.gguf", "a.ckpt", "a.safetensors"])
def test_what_does_not_tell_is_as_large_as_its_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"x" * 1000)
    assert file_sizes(path, PREFIXES) == FileSizes(1000, {})


@pytest.mark.parametrize("header", ["[]", "{}x", '{"a": 1}', '{"a": {"data_offsets": [0, 99999]}}'])
def test_a_header_that_lies_is_not_believed(tmp_path: Path, header: str) -> None:
    path = tmp_path / "odd.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header.encode())
    assert file_sizes(path) == FileSizes(8 + len(header), {})


def test_no_file_has_no_size(tmp_path: Path) -> None:
    assert file_sizes(tmp_path / "gone.safetensors") is None
