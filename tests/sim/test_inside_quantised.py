"""Quantised models are streamed as they are, to the bit: every format, with and without a LoRA, whole and in part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from offload_runtime.engine import parameter_bytes

from .comfyui import ComfyUI
from .on_card import OnCard
from .placing import BIG, place
from .quantised import FORMATS, Quantised, documented, forget_constants, formats

pytestmark = pytest.mark.usefixtures("_inference_mode")


class Run(OnCard):
    """A quantised model, as ComfyUI loads it."""

    def __init__(self, comfy: ComfyUI, format: str, **options: Any) -> None:
        if format not in formats():
            pytest.skip(f"This ComfyUI does not know {format}.")
        forget_constants()
        comfy.sim.cap = BIG
        model = Quantised(format, **options)
        made = getattr(comfy.model_patcher, "CoreModelPatcher", comfy.model_patcher.ModelPatcher)
        super().__init__(comfy, model, made(model, comfy.sim.device, torch.device("cpu")))


def test_these_are_all_formats_that_comfyui_knows(comfy: ComfyUI) -> None:
    assert set(formats()) <= set(FORMATS)


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_streams_to_the_bit(comfy: ComfyUI, format: str) -> None:
    run = Run(comfy, format)
    expected = run.core(run.wired)
    assert expected.isfinite().all()
    assert expected.std() > 0.1
    placed = place("model", run.wired)
    for _ in range(2):
        assert torch.equal(run(placed.value), expected)
    assert "4 of 4 layers" in placed.row.how
    assert torch.equal(run(placed.value.clone()), expected)
    assert placed.row.moved_bytes == 3 * parameter_bytes(run.model)
    assert documented(format, "card") == "100%"
    comfy.mm.unload_all_models()
    assert torch.equal(run.core(run.wired), expected)


@pytest.mark.parametrize("format", FORMATS)
def test_what_is_packed_stays_packed_when_comfyui_unloads(comfy: ComfyUI, format: str) -> None:
    """0.33 makes the weights anew when it moves a model, and copies their scales."""
    run = Run(comfy, format)
    placed = place("model", run.wired)
    expected = run(placed.value)
    pinned, blocks = comfy.sim.pinned, run.blocks()
    assert pinned >= parameter_bytes(run.model)
    for _ in range(3):
        comfy.mm.unload_all_models()
        assert torch.equal(run(placed.value), expected)
        assert comfy.sim.pinned == pinned
        assert run.blocks() == blocks


@pytest.mark.parametrize("format", FORMATS)
def test_a_lora_comes_through_every_format_as_when_core_streams(comfy: ComfyUI, format: str) -> None:
    run = Run(comfy, format)
    plain, patched = run.core(run.wired, "NO_VRAM"), run.core(run.with_lora(), "NO_VRAM")
    assert not torch.equal(plain, patched)
    placed = place("model", run.wired)
    assert torch.equal(run(placed.value), plain)
    with_lora = place("model", run.with_lora())
    for _ in range(2):
        assert torch.equal(run(with_lora.value), patched)
    assert torch.equal(run(placed.value), plain)


@pytest.mark.parametrize("format", FORMATS)
def test_layers_are_copied_to_the_card_straight_from_the_file(
    comfy: ComfyUI, tmp_path: Path, format: str
) -> None:
    from offload_runtime.adapter import Placements, apply_policy
    from offload_runtime.policy import Policy, Source, SourceKind

    file = tmp_path / "model.safetensors"
    run = Run(comfy, format, state=lambda state: save_file({k: v.clone() for k, v in state.items()}, file))
    expected = run.core(run.wired)
    source = Source(SourceKind.OVERRIDE, "Set Placement, node 1")
    wish = Policy.for_component(source, "diffusion_model", placement="layerwise", host="mapped")
    out, placements = apply_policy(wish, {"model": run.wired}, {"model": [file]}, Placements())
    size, pinned = parameter_bytes(run.model), comfy.sim.pinned
    for _ in range(3):
        assert torch.equal(run(out["model"]), expected)
        row = placements.placed[0].row()
        assert "the model file" in row.how
        assert f"{row.tiers['file'] / size:.0%}" == documented(format, "card from the file")
        assert comfy.sim.pinned == pinned
        comfy.mm.unload_all_models()


@pytest.mark.parametrize("format", FORMATS)
def test_a_budget_holds_for_quantised_bytes(comfy: ComfyUI, format: str) -> None:
    run = Run(comfy, format, every=2)
    expected = run.core(run.wired)
    constants = comfy.sim.memory.live  # of the kernels
    budget = parameter_bytes(run.model) * 3 // 4
    placed = place("model", run.wired, vram_budget=f"{budget}B")
    for _ in range(2):
        assert torch.equal(run(placed.value), expected)
        assert 0 < comfy.sim.memory.live - constants <= budget + (16 << 10)
    assert 0 < placed.row.moved_bytes < 2 * parameter_bytes(run.model)


@pytest.mark.parametrize("format", FORMATS)
def test_dynamic_vram_pages_what_is_quantised(comfy: ComfyUI, format: str) -> None:
    if not comfy.has_dynamic:
        pytest.skip("This ComfyUI has no dynamic VRAM (it came after 0.3.75).")
    comfy.enable_dynamic()
    run = Run(comfy, format)
    expected = run(run.wired)
    comfy.mm.unload_all_models()
    placed = place("model", run.wired, "layerwise")
    for _ in range(2):
        assert torch.equal(run(placed.value), expected)
        comfy.end_node()
