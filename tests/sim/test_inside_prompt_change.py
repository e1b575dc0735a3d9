"""A new prompt while the diffusion model is loaded, and what residency brings, in real sizes (no numbers)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from .comfyui import ComfyUI
from .crosscheck.standins import StandIn, build
from .placing import PlacedObject, end_node, place

GB = 10**9

pytestmark = pytest.mark.usefixtures("_inference_mode")


class Encoder(StandIn):
    """T5-XXL whose table is asked for by the method that ComfyUI calls."""

    def get_input_embeddings(self) -> Any:
        return self.embed

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        x = self.get_input_embeddings()(given).to(self.geometry.dtype)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


class Diffusion(nn.Module):
    """48 maps of a quarter of a gigabyte: 12 GB."""

    def __init__(self, ops: Any) -> None:
        super().__init__()
        with torch.device("meta"):
            maps = [ops.Linear(8192, 15259, bias=False, dtype=torch.bfloat16) for _ in range(48)]
        self.blocks = nn.ModuleList(m.to_empty(device="cpu").requires_grad_(False) for m in maps)

    def forward(self, x: torch.Tensor) -> None:
        for block in self.blocks:
            block(x)


class Workflow:
    """An encoder and a diffusion model on one card."""

    def __init__(self, comfy: ComfyUI) -> None:
        self.comfy = comfy
        model: Any = build("t5xxl", comfy.ops.manual_cast)
        model.__class__ = Encoder
        self.encoder = self.patcher(model)
        self.encoder.is_clip = True
        self.diffusion = self.patcher(Diffusion(comfy.ops.manual_cast))

    def patcher(self, model: nn.Module) -> Any:
        return self.comfy.model_patcher.ModelPatcher(model, self.comfy.sim.device, torch.device("cpu"))

    def encode(self, patcher: Any) -> None:
        self.comfy.mm.load_models_gpu([patcher])
        patcher.model(patcher.model.sample(self.comfy.sim.device)).cpu()
        end_node(self.comfy)

    def step(self) -> None:
        """Load the diffusion model as a sampler does, and run one step."""
        self.comfy.mm.load_models_gpu([self.diffusion], 2 * GB, minimum_memory_required=GB)
        self.diffusion.model(torch.empty(4096, 8192, dtype=torch.bfloat16, device=self.comfy.sim.device))
        torch.accelerator.synchronize()

    def prompt(self, patcher: Any) -> float:
        """Milliseconds from a new prompt to the end of the first step."""
        with self.comfy.sim.measure() as m:
            self.encode(patcher)
            self.step()
        return float(m.ms)


@pytest.mark.card(profile="rtx4090", shapes=True, cap=64 * GB)
def test_a_new_prompt_evicts_nothing_of_the_diffusion_model(comfy: ComfyUI) -> None:
    workflow = Workflow(comfy)
    workflow.step()
    workflow.prompt(workflow.encoder)
    resident = workflow.prompt(workflow.encoder)
    comfy.mm.unload_all_models()
    placed = place("model", workflow.encoder)
    for card in (24, 16, 12):
        comfy.sim.cap = card * GB
        workflow.step()
        before = workflow.diffusion.loaded_size()
        for _ in range(3):
            with comfy.sim.measure() as m:
                workflow.encode(placed.patcher)
                back = m.to_host
            assert workflow.diffusion.loaded_size() == before, "the encode evicts nothing"
            assert back < 5_000_000, "token ids go to their table and the result to the host, but no weight"
            assert comfy.sim.memory.reserved <= comfy.sim.cap
            workflow.step()
        assert workflow.diffusion.loaded_size() == before
        overhead = (workflow.prompt(placed.patcher) - resident) / 1000
        print(f"{card} GB card: {overhead:.3f} s more than resident, {before / GB:.1f} GB stay")  # noqa: T201
        assert overhead <= 0.40
        comfy.mm.unload_all_models()


@pytest.mark.card(profile="rtx4090", shapes=True, cap=64 * GB)
def test_half_of_the_bytes_resident_takes_half_of_the_time(comfy: ComfyUI) -> None:
    workflow = Workflow(comfy)
    whole = sum(p.nbytes for p in workflow.encoder.model.parameters())
    took = {}
    two_layers = 800 * 2**20
    for share, budget in (
        ("none", None),
        ("half", f"{(whole // 2 + two_layers) // 2**20}MB"),
        ("all", "16GB"),
    ):
        placed = place("model", workflow.encoder, vram_budget=budget)
        took[share] = timed(comfy, workflow, placed)
        comfy.mm.unload_all_models()
    print({share: round(ms, 1) for share, ms in took.items()})  # noqa: T201
    assert took["half"] <= 0.55 * took["none"]
    assert took["all"] < 0.1 * took["none"]


def timed(comfy: ComfyUI, workflow: Workflow, placed: PlacedObject) -> float:
    """Milliseconds of the second use."""
    for _ in range(2):
        with comfy.sim.measure() as m:
            workflow.encode(placed.patcher)
            torch.accelerator.synchronize()
    return float(m.ms)
