"""Every family of the coverage table, streamed on the simulated card: no race, and the resident model's bits.

The families are those of `tests/comfy`, where everything happens on one device. Here weights cross a link on a stream
of their own, inputs and weights on two devices are refused, and a use that its copy has not reached raises.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from offload_runtime.engine import Lane, Ledger, MemoryTier, PackedWeights, Streamer
from offload_runtime.engine.stacks import stack_layers

from .comfyui import ComfyUI

sys.path.append(str(Path(__file__).resolve().parents[1] / "comfy"))
from coverage_cases import CASES
from coverage_check import Case, build, run_seeded

sys.path.pop()


class OnCard:
    """A model that is fed from the host, as ComfyUI's VAE and sampler feed it: tensors are brought to the card."""

    def __init__(self, target: Any, device: torch.device) -> None:
        self._target, self._device = target, device

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


def pin(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8).pin_memory()


def use(case: Case, model: nn.Module, device: torch.device) -> list[torch.Tensor]:
    return [tensor.cpu() for tensor in run_seeded(case, OnCard(model, device))]


@pytest.mark.card(strict_free=True)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind}: {case.family}")
def test_a_family_streams_on_the_card(comfy: ComfyUI, case: Case) -> None:
    from offload_runtime.adapter.structure import find_stacks

    if case.missing():
        pytest.skip(f"This ComfyUI has no {case.missing()}.")
    device = comfy.sim.device
    expected = use(case, build(case).to(device), device)
    model = build(case)
    stacks = find_stacks(model)
    layers = list(stack_layers(stacks))
    if not layers:
        pytest.skip("It is not streamed.")
    streamed = {id(p) for layer in layers for p in layer.module.parameters()}
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is not None and id(tensor) not in streamed:
                    tensors[name] = nn.Parameter(tensor.to(device), False) if isinstance(tensor, nn.Parameter) else tensor.to(device)
    ledger = Ledger()
    streamer = Streamer(stacks, Lane(device), MemoryTier(device, PackedWeights(pin)), ledger)
    streamer.pack()
    for number in range(2):
        streamer.install()
        got = use(case, model, device)
        assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True)), number
    assert ledger.moved["memory"] > 0
    streamer.uninstall()
    streamer.free()
