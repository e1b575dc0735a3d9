"""The demo models' files: reused when right, replaced when not, whole or absent."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from scripts import demo_geometry, demo_models
from scripts.demo_geometry import Weight
from scripts.demo_models import MODELS, Model
from scripts.problem import Problem


def tiny() -> demo_geometry.Tensors:
    return {
        "weight": Weight((64, 64), 0.5),
        "norm": Weight((64,), mean=1.0, dtype="float32"),
        "bias": Weight((3,)),
    }


TINY = Model("vae/tiny.safetensors", tiny, "float16")


@pytest.fixture
def only_tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_models, "MODELS", (TINY,))


@pytest.mark.usefixtures("only_tiny")
def test_a_file_that_is_right_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    demo_models.ensure_models(tmp_path)
    written = (tmp_path / TINY.file).stat().st_mtime_ns
    capsys.readouterr()
    demo_models.ensure_models(tmp_path)
    assert (tmp_path / TINY.file).stat().st_mtime_ns == written
    assert capsys.readouterr().out == ""


@pytest.mark.usefixtures("only_tiny")
@pytest.mark.parametrize("damage", ["cut short", "of another recipe", "not safetensors"])
def test_a_file_that_is_wrong_is_replaced(tmp_path: Path, damage: str) -> None:
    demo_models.ensure_models(tmp_path)
    file = tmp_path / TINY.file
    right = file.read_bytes()
    match damage:
        case "cut short":
            file.write_bytes(right[:-1])
        case "of another recipe":
            demo_models.write(Model(TINY.file, lambda: tiny() | {"more": Weight((1,))}, "float16"), file)
        case _:
            file.write_bytes(b"hello")
    demo_models.ensure_models(tmp_path)
    assert file.read_bytes() == right


@pytest.mark.usefixtures("only_tiny")
def test_a_full_disk_is_one_sentence_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(tensors: object, file: Path, metadata: object) -> None:
        file.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(demo_models, "save_file", full)
    with pytest.raises(Problem, match=r"tiny\.safetensors failed \(No space left on device\)"):
        demo_models.ensure_models(tmp_path)
    assert list((tmp_path / "vae").iterdir()) == []


def test_values_are_seeded_and_have_the_spread_and_the_dtype_asked_for(tmp_path: Path) -> None:
    demo_models.write(TINY, tmp_path / "a.safetensors")
    demo_models.write(TINY, tmp_path / "b.safetensors")
    first, second = load_file(tmp_path / "a.safetensors"), load_file(tmp_path / "b.safetensors")
    assert all((first[name] == second[name]).all() for name in first)
    assert first["weight"].dtype == np.float16
    assert first["norm"].dtype == np.float32
    assert float(first["weight"].astype(np.float32).std()) == pytest.approx(0.5, rel=0.05)
    assert (first["norm"] == 1).all()
    assert (first["bias"] == 0).all()


@pytest.mark.parametrize(
    ("file", "millions"),
    [
        ("text_encoders/demo_clip_l.safetensors", 123.65),
        ("text_encoders/demo_t5_base.safetensors", 109.63),
        ("clip_vision/demo_clip_vit_l.safetensors", 303.97),
        ("style_models/demo_style_adapter.safetensors", 38.59),
        ("vae/demo_vae_16ch.safetensors", 83.82),
    ],
)
def test_the_models_have_as_many_weights_as_the_real_ones(file: str, millions: float) -> None:
    (model,) = (model for model in MODELS if model.file == file)
    count = sum(int(np.prod(weight.shape)) for weight in model.tensors().values())
    assert count / 1e6 == pytest.approx(millions, abs=0.01)
