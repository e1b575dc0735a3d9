"""A budget is used up, and never exceeded: what stays, and the slots beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import nn

from . import Accelerator
from .comfyui import ComfyUI
from .placing import BIG, MIB, end_node, place
from .test_inside_tensors import GIVEN, WIDTH, Block, Stacked

pytestmark = pytest.mark.usefixtures("_inference_mode")

GRAIN = 512
"""What the simulated card, as the real one, rounds every allocation up to."""


class Plain(Block):
    """A layer that is nothing but its operations, so that it can stay whole."""

    def __init__(self, ops: Any, inner: int) -> None:
        super().__init__(ops, inner)
        del self.scale
        self.scale = torch.ones(1)


class WithHead(Stacked):
    """Layers and, beside them, a map of ComfyUI's."""

    def __init__(self, ops: Any, block: Callable[..., nn.Module], count: int, head: int) -> None:
        super().__init__(ops, block, count)
        self.head = ops.Linear(WIDTH, head)
        for parameter in self.head.parameters():
            parameter.requires_grad_(False).copy_(torch.full(parameter.shape, 0.01))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(super().forward(x))


@settings(
    max_examples=15, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
@given(
    inners=st.lists(st.sampled_from([32, 64, 300, 512, 2048, 4096]), min_size=2, max_size=9),
    head=st.sampled_from([8, 512, 8192]),
    share=st.floats(0, 1.1),
    streams=st.integers(0, 3),
    block=st.sampled_from([Block, Plain]),
)
@example(inners=[4096, 32, 4096, 32, 4096], head=8, share=0.6, streams=2, block=Plain)
def test_what_stays_and_the_slots_take_the_budget_and_no_more(
    inners: list[int], head: int, share: float, streams: int, block: type[Block]
) -> None:
    with Accelerator(cap=BIG) as sim:
        comfy = ComfyUI(sim, streams=streams)
        try:
            widths = iter(inners)
            model = WithHead(comfy.ops.manual_cast, lambda ops: block(ops, next(widths)), len(inners), head)
            patcher = comfy.model_patcher.ModelPatcher(model, sim.device, torch.device("cpu"))
            expected = model(GIVEN)
            whole = sum(p.nbytes for p in model.parameters())
            placed = place("model", patcher, vram_budget=f"{int(share * whole)}B")
            operations = [m for m in model.modules() if isinstance(m, nn.Linear)]
            grains = GRAIN * (2 * len(operations) + 2)
            slots = placed.patcher.attachments["layerwise_offload"].streamer.footprint
            # Where not even the slots fit in the budget they are as small as they can be, and core streams the rest.
            beside = 2 * sum(p.nbytes for p in model.head.parameters())
            least = slots + (beside if share * whole < slots + beside * (streams + 1) else 0)
            budget = max(int(share * whole), least)
            for _ in range(3):
                sim.memory.reset_peak()
                comfy.mm.load_models_gpu([placed.value])
                torch.testing.assert_close(model(GIVEN.to(sim.device)).cpu(), expected)
                assert sim.memory.weights_peak <= budget + grains
                end_node(comfy)
                assert sim.memory.live <= max(share * whole, slots) + grains
            if share * whole > slots + beside * (streams + 1):
                streamed = [
                    sum(p.nbytes for p in m.parameters(recurse=False))
                    for m in operations
                    if m.weight.device.type == "cpu"
                ]
                left = share * whole - slots - model.model_loaded_weight_memory
                assert left <= min(streamed, default=whole), "there was room for one more"
        finally:
            comfy.close()


@pytest.mark.card(profile="rtx4090", shapes=True)
def test_half_of_an_encoder_is_half_of_its_copies(comfy: ComfyUI) -> None:
    from .crosscheck.standins import build

    comfy.sim.cap = 1 << 40
    model = build("clip_l", comfy.ops.manual_cast)
    model.embed = None
    patcher = comfy.model_patcher.ModelPatcher(model, comfy.sim.device, torch.device("cpu"))
    layers = sum(p.nbytes for p in model.blocks.parameters())
    slots = 2 * layers // len(model.blocks)
    placed = place("model", patcher, vram_budget=f"{layers // 2 + slots + MIB // 4}B")
    hidden = torch.zeros(1, 77, 768, dtype=torch.bfloat16, device=comfy.sim.device)
    for _ in range(2):
        comfy.sim.synchronize()
        with comfy.sim.measure() as m:
            comfy.mm.load_models_gpu([placed.value])
            model(hidden)
    assert m.to_device <= 0.505 * layers
    assert m.ms <= 3.7


def test_a_second_use_in_a_card_with_little_room_moves_nothing(comfy: ComfyUI) -> None:
    """What the slots take is part of the room that they were given."""
    comfy.sim.cap = BIG
    model = Stacked(comfy.ops.manual_cast, lambda ops: Block(ops, 4096), count=12)
    patcher = comfy.model_patcher.ModelPatcher(model, comfy.sim.device, torch.device("cpu"))
    whole = sum(p.nbytes for p in model.parameters())
    placed = place("model", patcher, vram_budget="1GB")
    comfy.cap_for(whole // 2)
    held = []
    for _ in range(3):
        comfy.mm.load_models_gpu([placed.value])
        model(GIVEN.to(comfy.sim.device))
        end_node(comfy)
        held.append(model.model_loaded_weight_memory)
    assert 0 < held[0] < whole
    assert len(set(held)) == 1
