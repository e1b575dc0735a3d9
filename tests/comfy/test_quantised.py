"""Quantised models on the CPU, their weights in the model file: every format, to the bit."""

from __future__ import annotations

import gc
import importlib.util
from pathlib import Path
from typing import Any

import comfy.model_management as mm
import comfy.model_patcher
import pytest
import torch
from placing import PlacedObject, policy
from safetensors.torch import save_file

from offload_runtime.adapter.record import record_of
from offload_runtime.engine import parameter_bytes
from offload_runtime.engine.parts import parts_of

SHARED = Path(__file__).parents[1] / "sim" / "quantised.py"
spec = importlib.util.spec_from_file_location("quantised", SHARED)
assert spec is not None
assert spec.loader is not None
quantised: Any = importlib.util.module_from_spec(spec)
spec.loader.exec_module(quantised)

CPU = torch.device("cpu")

pytestmark = pytest.mark.parametrize("format", quantised.FORMATS)


class Run:
    """A quantised model that was loaded from a file, and what it answers."""

    def __init__(self, format: str, folder: Path) -> None:
        if format not in quantised.formats():
            pytest.skip(f"This ComfyUI does not know {format}.")
        self.file = folder / "model.safetensors"
        with torch.inference_mode():
            self.model = quantised.Quantised(format, state=self._save)
            made = getattr(comfy.model_patcher, "CoreModelPatcher", comfy.model_patcher.ModelPatcher)
            self.wired = made(self.model, CPU, CPU)

    def _save(self, state: dict[str, torch.Tensor]) -> None:
        save_file({name: value.clone() for name, value in state.items()}, self.file)

    @torch.inference_mode()
    def __call__(self, patcher: Any) -> torch.Tensor:
        mm.load_models_gpu([patcher])
        return self.model(quantised.GIVEN).clone()

    @torch.inference_mode()
    def unload(self) -> None:
        """As ComfyUI does to make room; 0.33 makes quantised weights anew then."""
        mm.unload_all_models()

    def place(self, placement: str = "layerwise") -> PlacedObject:
        return PlacedObject("model", self.wired, policy(placement), [self.file])


def test_a_quantised_weight_is_read_from_the_file_when_its_layer_runs(format: str, tmp_path: Path) -> None:
    run = Run(format, tmp_path)
    expected = run(run.wired)
    placed = run.place()
    size = parameter_bytes(run.model)
    for _ in range(3):
        assert torch.equal(run(placed.patcher), expected)
        assert placed.row.applied == "layerwise"
        assert f"{placed.row.tiers['file'] / size:.0%}" == quantised.documented(format, "CPU from the file")
        run.unload()
    assert placed.row.tiers["file"] >= 0.95 * size
    assert placed.row.moved_bytes >= 3 * 0.95 * size


def test_whoever_reads_a_quantised_weight_has_it_in_memory(format: str, tmp_path: Path) -> None:
    run = Run(format, tmp_path)
    expected = run(run.wired)
    kind, values = type(run.model.blocks[0].up.weight), run.model.blocks[0].up.weight.dequantize()
    placed = run.place()
    run(placed.patcher)
    run.unload()
    weight = run.model.blocks[0].up.weight
    assert isinstance(weight, kind)
    assert isinstance(weight, torch.nn.Parameter)
    assert record_of(run.model).mapped.holds(weight)
    assert weight.shape == values.shape, "that does not wake it"
    assert record_of(run.model).mapped.holds(weight)
    run.file.write_bytes(b"")  # reading the mapping would end the process now
    with pytest.raises(Exception, match="has changed on disk"):
        torch.nn.functional.linear(quantised.GIVEN, weight)
    assert not torch.equal(expected, torch.zeros_like(expected))


def test_a_woken_weight_rests_again_at_the_next_use(format: str, tmp_path: Path) -> None:
    run = Run(format, tmp_path)
    values = run.model.blocks[0].up.weight.dequantize()
    expected, placed = run(run.wired), run.place()
    run(placed.patcher)
    weight = run.model.blocks[0].up.weight
    with torch.inference_mode():
        assert torch.equal(weight + 0, values)
    assert not record_of(run.model).mapped.holds(weight)
    assert type(weight).__name__ == "QuantizedTensor"
    assert not hasattr(type(weight), "guards")
    run.unload()
    assert torch.equal(run(placed.patcher), expected)
    assert record_of(run.model).mapped.holds(run.model.blocks[0].up.weight)


def test_a_lora_on_a_model_in_its_file(format: str, tmp_path: Path) -> None:
    run = Run(format, tmp_path)
    generator = torch.Generator().manual_seed(3)
    patches = {
        f"blocks.{i}.up.weight": (torch.randn(quantised.INNER, quantised.WIDTH, generator=generator) * 0.05,)
        for i in range(4)
    }
    with_lora = run.wired.clone()
    with_lora.add_patches(patches, 1.0)
    plain = run(run.wired)
    try:
        patched = run(with_lora)
    except RuntimeError as error:
        pytest.skip(f"This ComfyUI cannot do it without us either: {error}.")
    run.unload()
    assert not torch.equal(plain, patched)
    placed = run.place()
    assert torch.equal(run(placed.patcher), plain)
    clone = placed.patcher.clone()
    clone.add_patches(patches, 1.0)
    assert torch.equal(run(clone), patched)
    run.unload()
    assert torch.equal(run(placed.patcher), plain)


def test_afterwards_everything_is_in_memory_and_of_its_own_class(format: str, tmp_path: Path) -> None:
    run = Run(format, tmp_path)
    expected, placed = run(run.wired), run.place()
    run(placed.patcher)
    run.unload()
    mapped = record_of(run.model).mapped
    del placed
    gc.collect()
    mapped.release_all(run.model.parameters())
    assert not any(map(mapped.holds, run.model.parameters()))
    assert not any(hasattr(type(parameter), "guards") for parameter in run.model.parameters())
    assert all(
        type(part) in (torch.Tensor, torch.nn.Parameter)
        for p in run.model.parameters()
        for part in parts_of(p)
    )
    run.file.unlink()
    assert torch.equal(run(run.wired), expected)
