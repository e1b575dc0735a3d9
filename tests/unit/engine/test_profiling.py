"""torch's profiler shows which layer a transfer is for, and nothing is named while none runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.profiler import ProfilerActivity, profile

from offload_runtime.engine import Lane, Layer, Ledger, MappedTier, MappedWeights, Stack, Streamer
from offload_runtime.engine.profiling import PREFIX


class Model(nn.Module):
    """Three maps and a table, all of them in the model file."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(16, 8)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(3))
        self.requires_grad_(False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        for block in self.blocks:
            x = block(x)
        return x


def from_file(folder: Path) -> tuple[Model, Streamer]:
    """A model whose layers are read from its file when they run."""
    model = Model()
    save_file(
        {name: p.detach().clone() for name, p in model.named_parameters()}, folder / "model.safetensors"
    )
    weights = MappedWeights()
    weights.adopt(dict(model.named_parameters()), [folder / "model.safetensors"])
    layers = tuple(Layer(f"blocks.{i}", block) for i, block in enumerate(model.blocks))
    streamer = Streamer([Stack("blocks", layers)], Lane(torch.device("cpu")), MappedTier(weights), Ledger())
    streamer.install()
    return model, streamer


def names(work: Callable[[], object]) -> dict[str, int]:
    """What of ours a profiler saw while some work was done, and how often."""
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        work()
    return {
        event.key.removeprefix(f"{PREFIX}: "): event.count
        for event in seen.key_averages()
        if event.key.startswith(PREFIX)
    }


def test_a_profile_shows_each_layer_that_is_read_from_the_file(tmp_path: Path) -> None:
    model, _kept = from_file(tmp_path)
    seen = names(lambda: model(torch.arange(4)))
    assert {name: count for name, count in seen.items() if name.startswith("copy")} == {
        f"copy blocks.{i}": 1 for i in range(3)
    }
    assert {f"read blocks.{i}.0.{part}" for i in range(3) for part in ("weight", "bias")} <= set(seen)
    assert seen["read rows of table.weight"] == 1


def test_a_layer_that_is_copied_again_is_named(tmp_path: Path) -> None:
    """One that is overwritten by a layer which it calls itself."""
    model, _kept = from_file(tmp_path)
    first = model.blocks[0]
    linear = first[0].forward

    def calls_another(x: torch.Tensor) -> torch.Tensor:
        model.blocks[1](x)
        return linear(x)

    first[0].forward = calls_another
    assert names(lambda: first(torch.ones(1, 8)))["copy again blocks.0"] == 1


def test_a_profile_changes_no_number(tmp_path: Path) -> None:
    model, _kept = from_file(tmp_path)
    plain, profiled = model(torch.arange(4)), []
    names(lambda: profiled.append(model(torch.arange(4))))
    assert torch.equal(profiled[0], plain)


def test_nothing_is_named_while_no_profiler_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It costs more than the rest of a small layer's transfer."""
    asked: list[str] = []
    monkeypatch.setattr(torch.profiler, "record_function", asked.append)
    model, _kept = from_file(tmp_path)
    model(torch.arange(4))
    assert not asked


def test_a_torch_without_the_flag_runs_without_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.autograd.profiler, "_is_profiler_enabled")
    model, _kept = from_file(tmp_path)
    expected = Model()(torch.arange(4))
    assert torch.equal(model(torch.arange(4)), expected)
