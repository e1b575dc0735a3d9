"""Every family of models in ComfyUI: its layers are found, they are called, and streaming changes nothing."""

from __future__ import annotations

import comfy.ops
import comfyui_version
import models
import pytest
import torch
from coverage_cases import CASES
from coverage_check import Case, build, run_seeded, run_streamed
from coverage_examine import examine, kept_whole_rows
from coverage_table import documented
from coverage_text import Prompt, encode
from placing import place, policy

from offload_runtime.adapter.structure import find_stacks
from offload_runtime.engine.stacks import stack_layers

VERSION = comfyui_version.__version__

needs_table = pytest.mark.skipif(
    not documented(VERSION), reason=f"docs/coverage.md was not generated for ComfyUI {VERSION}"
)


@pytest.fixture(params=CASES, ids=lambda case: f"{case.kind}: {case.family}")
def case(request: pytest.FixtureRequest) -> Case:
    case: Case = request.param
    missing = case.missing()
    if missing:
        pytest.skip(f"ComfyUI {VERSION} has no {missing}")
    return case


def test_its_layers_are_called_and_streaming_them_changes_nothing(case: Case) -> None:
    assert examine(case).faults == []


@needs_table
def test_the_table_holds_what_was_found(case: Case) -> None:
    """Otherwise run `python -m scripts.refresh_coverage`, and read the diff."""
    assert examine(case).row in documented(VERSION)


@needs_table
def test_the_table_holds_nothing_else() -> None:
    known = {case.family for case in CASES if case.missing() is None}
    assert {row for row in documented(VERSION) if row.family not in known} == set(kept_whole_rows())


def test_vision_layers_stay_idle_without_an_image() -> None:
    seeing = next(case for case in CASES if case.family == "Qwen2.5-VL 7B (Qwen-Image)")
    blind = Case("text encoder", "blind", seeing.needs, seeing.make, lambda model: encode(model, Prompt()))
    model = build(blind)
    stacks = find_stacks(model)
    (first, second), order = run_streamed(blind, model, stacks)
    ran = {list(stack_layers(stacks))[index].name.rsplit(".", 1)[0] for index in order}
    assert ran == {"qwen25_7b.transformer.model.layers"}
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[0], run_seeded(blind, model)[0])


def test_a_vae_that_comfyui_keeps_whole_is_left_alone_with_a_reason() -> None:
    vae = models.vae()
    vae.disable_offload = True
    placed = place(models.FAMILIES["vae"], vae, policy("layerwise"))
    models.reconstruct(placed.value)
    assert placed.row.applied == "comfyui"
    assert "to be offloaded" in placed.row.why
    assert not any("forward" in module.__dict__ for module in placed.patcher.model.modules())


class Block(torch.nn.Module):
    """A layer whose weight others may read, or that reads it past the operation."""

    def __init__(self, flaw: str) -> None:
        super().__init__()
        self.inner = comfy.ops.manual_cast.Linear(4, 4)
        self.flaw = flaw

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.inner.weight if self.flaw == "reads past" else self.inner(x)


class Model(torch.nn.Module):
    """Blocks that all run, or one of which is skipped or looked into from outside."""

    def __init__(self, flaw: str) -> None:
        super().__init__()
        self.flaw = flaw
        self.blocks = torch.nn.ModuleList(Block(flaw) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks[: 2 if self.flaw == "skips" else 3]:
            x = block(x)
        return x + self.blocks[0].inner.weight.sum() if self.flaw == "peeks" else x


@pytest.mark.parametrize(
    ("flaw", "fault"),
    [
        ("", ""),
        ("skips", "blocks.2 is never called"),
        ("peeks", "use 1 streamed differs from resident"),
        ("reads past", "split into operations it differs from resident"),
    ],
)
def test_the_check_itself_sees_a_flaw(flaw: str, fault: str) -> None:
    case = Case("vae", "flawed", "", lambda: Model(flaw), lambda model: model(torch.ones(1, 4)))
    assert examine(case).faults[:1] == ([fault] if fault else [])
