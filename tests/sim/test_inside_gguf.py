"""GGUF models of the pack that most people load them with: the same numbers, its patcher intact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from offload_runtime.engine import parameter_bytes

from . import gguf_pack
from .comfyui import ComfyUI
from .on_card import OnCard
from .placing import BIG, place
from .quantised import INNER, WIDTH, Block

pytestmark = pytest.mark.usefixtures("_inference_mode")


class Model(torch.nn.Module):
    def __init__(self, ops: Any, state: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block(ops) for _ in range(4))
        self.load_state_dict(state, strict=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Run(OnCard):
    """A model from a GGUF file, with the pack's operations and patcher."""

    def __init__(self, comfy: ComfyUI, path: Path, quantisation: str) -> None:
        pack = gguf_pack.load_pack()
        comfy.sim.cap = BIG
        generator = torch.Generator().manual_seed(4)
        weights = {}
        for index in range(4):
            for part, shape in (("up", (INNER, WIDTH)), ("down", (WIDTH, INNER))):
                weights[f"blocks.{index}.{part}.weight"] = torch.randn(shape, generator=generator) * 0.05
                weights[f"blocks.{index}.{part}.bias"] = torch.randn(shape[0], generator=generator) * 0.1
            weights[f"blocks.{index}.norm.weight"] = torch.ones(WIDTH)
            weights[f"blocks.{index}.norm.bias"] = torch.zeros(WIDTH)
        gguf_pack.write(path, weights, quantisation)
        loaded = pack.loader.gguf_sd_loader(str(path))
        state = loaded[0] if isinstance(loaded, tuple) else loaded
        model = Model(pack.ops.GGMLOps, state).requires_grad_(False)
        plain = comfy.model_patcher.ModelPatcher(model, comfy.sim.device, torch.device("cpu"))
        super().__init__(comfy, model, pack.nodes.GGUFModelPatcher.clone(plain))


@pytest.mark.parametrize("quantisation", ["BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", *gguf_pack.SCALES])
def test_gguf_weights_stream_as_they_are(comfy: ComfyUI, tmp_path: Path, quantisation: str) -> None:
    run = Run(comfy, tmp_path / "model.gguf", quantisation)
    expected = run.core(run.wired)
    assert expected.isfinite().all()
    placed = place("model", run.wired)
    assert type(placed.value).__name__ == "GGUFModelPatcher"
    for _ in range(2):
        assert torch.equal(run(placed.value), expected)
        assert "4 of 4 layers" in placed.row.how
    assert torch.equal(run(placed.value.clone()), expected)
    assert type(placed.value.clone()).__name__ == "GGUFModelPatcher"
    assert placed.row.moved_bytes == 3 * parameter_bytes(run.model)
    comfy.mm.unload_all_models()
    assert torch.equal(run.core(run.wired), expected)


def test_a_lora_on_a_gguf_model_comes_through(comfy: ComfyUI, tmp_path: Path) -> None:
    run = Run(comfy, tmp_path / "model.gguf", "Q8_0")
    plain, patched = run.core(run.wired), run.core(run.with_lora())
    assert not torch.equal(plain, patched)
    placed = place("model", run.wired)
    assert torch.equal(run(placed.value), plain)
    with_lora = place("model", run.with_lora())
    for _ in range(2):
        assert torch.equal(run(with_lora.value), patched)
        assert torch.equal(run(placed.value), plain)


def test_the_pack_still_lets_go_of_its_file(comfy: ComfyUI, tmp_path: Path) -> None:
    """It moves every weight away from the file's mapping at the first load; what is packed stays packed."""
    path = tmp_path / "model.gguf"
    run = Run(comfy, path, "Q8_0")
    placed = place("model", run.wired)
    run(placed.value)
    run(placed.value)
    mapped = [line for line in Path("/proc/self/maps").read_text().splitlines() if str(path) in line]
    assert not mapped
    assert comfy.sim.pinned >= parameter_bytes(run.model)
    assert len(run.blocks()) == 4
