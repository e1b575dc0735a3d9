"""Every family of the coverage table, streamed on the simulated card: no race, and the resident model's bits.

The families are those of `tests/comfy`, where everything happens on one device. Here weights cross a link on a stream
of their own, inputs and weights on two devices are refused, and a use that its copy has not reached raises.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from offload_runtime.engine import Lane, Layer, Ledger, MemoryTier, PackedWeights, Streamer
from offload_runtime.engine.stacks import stack_layers

from . import Accelerator
from .comfyui import ComfyUI
from .profile import profile_named

sys.path.append(str(Path(__file__).resolve().parents[1] / "comfy"))
from coverage_cases import CASES
from coverage_check import Case, build, run_seeded

sys.path.pop()


class OnCard:
    """A model that is used as ComfyUI's loaders use one that computes on the card: tensors are brought there first."""

    def __init__(self, target: Any, device: torch.device) -> None:
        self._target, self._device = target, device

    def reset_clip_options(self) -> None:
        """Say where to compute, as `CLIP.encode_from_tokens` does after it."""
        self._target.reset_clip_options()
        self._target.set_clip_options({"execution_device": self._device})

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        return OnCard(value, self._device) if callable(value) else value

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._target(*self._bring(args), **self._bring(kwargs))

    def _bring(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.to(self._device)
        if type(value) in (list, tuple):
            return type(value)(map(self._bring, value))
        if type(value) is dict:
            return {key: self._bring(item) for key, item in value.items()}
        return value


def use(case: Case, model: nn.Module, device: torch.device) -> list[torch.Tensor]:
    return [tensor.cpu() for tensor in run_seeded(case, OnCard(model, device))]


def bring_all_but(layers: list[Layer], model: nn.Module, device: torch.device) -> None:
    """Move what is not streamed to the card."""
    streamed = {id(parameter) for layer in layers for parameter in layer.module.parameters()}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and id(parameter) not in streamed:
                module._parameters[name] = nn.Parameter(parameter.to(device), requires_grad=False)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = buffer.to(device)


#: They draw their tokens with a `torch.Generator` of the card, which PyTorch gives to no backend written in Python.
DRAW_ON_CARD = {"Qwen3 0.6B, 2B (ACE-Step 1.5)", "Qwen3 8B (MiniMax Music 3)"}


@pytest.fixture(scope="module")
def card() -> Iterator[Accelerator]:
    """One card and one ComfyUI for all families: opening them takes as long as most families do."""
    slow = replace(profile_named("rtx4090"), link=1e9)  # else tiny layers are there before anything computes
    with Accelerator(slow, strict_free=True) as sim:
        opened = ComfyUI(sim)
        yield sim
        opened.close()


@pytest.fixture(params=CASES, ids=lambda case: f"{case.kind}: {case.family}")
def case(card: Accelerator, request: pytest.FixtureRequest) -> Iterator[Case]:
    """A family that this ComfyUI has; it finds the card's pools empty."""
    case: Case = request.param
    if case.missing():
        pytest.skip(f"This ComfyUI has no {case.missing()}.")
    if case.left_alone:
        pytest.skip("It is not streamed.")
    if case.family in DRAW_ON_CARD:
        pytest.skip("The simulated card has no random generator of its own.")
    yield case
    card.memory.empty_cache()


def stream(
    card: Accelerator, case: Case, budget: int | None = None
) -> Iterator[tuple[list[torch.Tensor], float]]:
    """Use a family twice out of slots, the second time with the order known; yield results and overlap."""
    from offload_runtime.adapter.structure import find_stacks

    model = build(case)
    stacks = find_stacks(model)
    layers = list(stack_layers(stacks))
    bring_all_but(layers, model, card.device)
    tier = MemoryTier(card.device, PackedWeights(card.pin))
    streamer = Streamer(stacks, Lane(card.device), tier, Ledger(), budget)
    streamer.pack()
    for _ in range(2):
        streamer.install()
        with card.measure() as measured:
            got = use(case, model, card.device)
        yield got, measured.overlap_ms
    assert {p.device.type for layer in layers for p in layer.module.parameters()} == {"cpu"}
    streamer.uninstall()
    streamer.free()


def test_a_family_streams_on_the_card(card: Accelerator, case: Case) -> None:
    expected = use(case, build(case).to(card.device), card.device)
    overlaps = []
    for got, overlap in stream(card, case):
        assert len(got) == len(expected)
        assert all(map(torch.equal, got, expected))
        overlaps.append(overlap)
    assert max(overlaps) > 0


@pytest.mark.parametrize(
    "case", [c for c in CASES if c.reads_past], ids=lambda case: case.family, indirect=True
)
def test_the_weight_of_a_split_off_operation_that_is_read_past_it_is_brought_by_comfyui(
    card: Accelerator, case: Case
) -> None:
    expected = use(case, build(case).to(card.device), card.device)
    for got, _ in stream(card, case, budget=1):
        assert all(map(torch.equal, got, expected))
