"""What a start of ComfyUI has learnt counts at the next one, and what a use takes is known before it begins."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .comfyui import ComfyUI
from .learning import Learner, learns, restart
from .prompt_change import GB

pytestmark = [
    pytest.mark.usefixtures("_inference_mode"),
    pytest.mark.card(profile="rtx4090", shapes=True, cap=24 * GB),
]
BOTH = pytest.mark.parametrize("dynamic", [True, False], ids=["dynamic", "legacy"])


@pytest.fixture
def kept(comfy: ComfyUI, dynamic: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of what is learnt; ComfyUI has dynamic VRAM, or has not."""
    if dynamic and not comfy.has_dynamic:
        pytest.skip("This ComfyUI has no dynamic VRAM (it came after 0.3.75).")
    if dynamic:
        comfy.enable_dynamic()
    with learns(tmp_path, monkeypatch) as path:
        yield path
        comfy.mm.unload_all_models()


def said(placements: Any) -> list[tuple[Any, ...]]:
    """What was decided for each component, without the words of why."""
    return [
        (d.component, str(d.placement), d.planned_bytes, d.budget_bytes, d.gives_way)
        for _, d in placements.decided
    ]


@BOTH
def test_what_a_sampler_asked_for_counts_at_the_next_start(comfy: ComfyUI, kept: Path, dynamic: bool) -> None:
    workflow = Learner(comfy, asks=6 * GB)
    placements = workflow.place()
    assert dict((c, p) for c, p, *_ in said(placements))["text_encoder"] == "resident"
    workflow.run()
    workflow.run()
    known = said(placements)
    assert known[0][:2] == ("text_encoder", "layerwise")
    placements.report()
    assert kept.is_file()
    del workflow, placements
    restart(comfy)
    workflow = Learner(comfy, asks=6 * GB)
    assert said(workflow.place()) == known, "before anything has run"


@BOTH
def test_another_machine_or_another_model_knows_nothing(
    comfy: ComfyUI, kept: Path, dynamic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from offload_runtime.adapter.record import record_of

    workflow = Learner(comfy, layers=3, gigabytes=4, asks=6 * GB)
    workflow.place()
    workflow.run()
    workflow.run()

    def demand(gigabytes: int) -> int:
        restart(comfy)
        again = Learner(comfy, layers=3, gigabytes=gigabytes, asks=6 * GB)
        again.place()
        return record_of(again.diffusion.model).demand

    assert demand(4) == 6 * GB
    assert demand(5) == 0
    monkeypatch.setattr(comfy.sim, "cap", 16 * GB)
    assert demand(4) == 0


@BOTH
def test_nothing_is_kept_where_it_is_switched_off(
    comfy: ComfyUI, kept: Path, dynamic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAYERWISE_OFFLOAD_LEARN", " Off ")
    workflow = Learner(comfy, layers=3, gigabytes=4)
    placements = workflow.place()
    workflow.run()
    workflow.run()
    assert all(row.measured.predicted is None for row in placements.report().rows)
    assert not kept.parent.exists()


WAYS: list[dict[str, Any]] = [
    {},
    {"placements": {"text_encoder": "layerwise"}},
    {"placements": {"text_encoder": "resident"}},
    {"placements": {"text_encoder": "offload", "vae": "layerwise"}},
    {"mode": "memory"},
    {"vram_budget": "6GB"},
]
WORK = random.Random(5)
WORKLOADS = [
    (encoder, gigabytes, way)
    for way, (encoder, gigabytes) in zip(
        [WAYS[i % len(WAYS)] for i in range(10)],
        [(WORK.choice(("clip_l", "t5xxl", 8, 22, "qwen7b")), WORK.choice((2, 6, 12, 20))) for _ in range(10)],
        strict=True,
    )
]


@BOTH
@pytest.mark.parametrize("work", range(len(WORKLOADS)))
def test_from_the_second_run_on_what_was_predicted_is_what_is_measured(
    comfy: ComfyUI, kept: Path, dynamic: bool, work: int
) -> None:
    encoder, gigabytes, way = WORKLOADS[work]
    runs, decided = 0, []
    for _ in range(2):
        workflow = Learner(comfy, encoder, gigabytes, asks=2 * GB)
        placements = workflow.place(**way)
        for run in range(4):
            workflow.run(steps=2)
            decided.append(said(placements))
            runs += 1
            for row, (facts, _) in zip(placements.report().rows, placements.decided, strict=True):
                measured, where = row.measured, (runs, row.component)
                if runs == 1 or (measured.predicted is None and runs <= 3):
                    assert runs > 1 or measured.predicted is None, "nothing was known"
                    continue  # under dynamic VRAM, what is on the card settles in the first runs
                # One that has just been decided anew moves what it has to: once, and more than it will.
                far = 0.1 if decided[-1] == decided[-2] or run == 0 else 0.2
                # A layer that is still in its slot from the last use, or is not, is one copy less or more.
                layer = facts.layer_bytes / max(1, facts.layers) * bool(measured.moved_bytes)
                copy = layer / (measured.moved_bytes or 1) * measured.computing
                apart = max(far * measured.computing, 1.2 * copy)
                assert measured.predicted == pytest.approx(measured.computing, abs=apart), where
        del workflow, placements, row, measured
        restart(comfy)
