"""What a report suggests does what it said: applied, the time is within 10 % of the run's, and the bytes are exact."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from .comfyui import ComfyUI
from .prompt_change import GB
from .test_inside_measured import Counted

pytestmark = pytest.mark.usefixtures("_inference_mode")
BOTH = pytest.mark.parametrize("dynamic", [True, False], ids=["dynamic", "legacy"])
LEGACY = pytest.mark.parametrize("dynamic", [False], ids=["legacy"])
AMPLE = pytest.mark.card(profile="rtx4090", shapes=True, cap=30 * GB)
TIGHT = pytest.mark.card(profile="rtx4090", shapes=True, cap=20 * GB)


@pytest.fixture
def workflow(comfy: ComfyUI, dynamic: bool) -> Iterator[Counted]:
    if dynamic and not comfy.has_dynamic:
        pytest.skip("This ComfyUI has no dynamic VRAM (it came after 0.3.75).")
    gc.collect()  # what an earlier test has placed twice is in a cycle, with the lane of its card
    if dynamic:
        comfy.enable_dynamic()
    yield Counted(comfy)
    comfy.mm.unload_all_models()


def asked(**widgets: Any) -> Any:
    from offload_runtime.policy import Policy, Source, SourceKind

    return Policy.from_widgets(Source(SourceKind.NODE, "Placement Policy, node 1"), **widgets)


def with_suggestion(policy: Any, suggestion: Any) -> Any:
    """What Apply makes of a policy: the widget of its node, or a Set Placement node behind it."""
    from offload_runtime.policy import Policy, Source, SourceKind

    if suggestion.node == "Placement Policy":
        values = {suggestion.widget: suggestion.value}
        one = (
            values
            if suggestion.selector == "all"
            else {"placements": values, "selectors": {suggestion.widget: suggestion.selector}}
        )
        return policy.extended(asked(**one))
    override = Source(SourceKind.OVERRIDE, "Set Placement, node 2")
    values = {suggestion.widget: suggestion.value}
    return policy.extended(Policy.for_component(override, suggestion.selector, **values))


class Runs:
    """Prompts until nothing changes any more, as someone queues them."""

    def __init__(self, comfy: ComfyUI, workflow: Counted) -> None:
        self._comfy, self._workflow = comfy, workflow
        self._count = 0

    def steady(self, placed: Any) -> tuple[float, int, Any]:
        """The milliseconds of a prompt, the most of the card that it took, and its report."""
        for _ in range(4):
            self._count += 1
            with self._comfy.sim.measure() as taken:
                self._workflow.run(f"prompt {self._count}")
        return float(taken.ms), self._workflow.most, placed.report()


@AMPLE
@LEGACY
@pytest.mark.parametrize(
    ("asks", "line"),
    [
        ({"placements": {"text_encoder": "layerwise"}}, "text_encoder: resident"),
        ({"mode": "memory"}, "text_encoder: resident"),
        ({"vram_budget": "15GB"}, "vram_budget: 20.2GB"),
    ],
)
def test_what_can_stay_is_suggested_and_does_what_was_said(
    comfy: ComfyUI, workflow: Counted, asks: Any, line: str
) -> None:
    runs, policy = Runs(comfy, workflow), asked(**asks)
    before, peak, report = runs.steady(workflow.apply(policy))
    (suggestion,) = report.suggestions
    assert suggestion.line == line
    assert suggestion.effect in report.text()
    after, peak_after, report = runs.steady(workflow.apply(with_suggestion(policy, suggestion)))
    assert before - after == pytest.approx(1000 * suggestion.seconds, abs=0.1 * before)
    assert before - after > 0.9 * 1000 * suggestion.seconds
    assert peak_after - peak == suggestion.bytes
    assert report.suggestions == ()


@TIGHT
@LEGACY
def test_what_fits_in_part_gets_a_budget(comfy: ComfyUI, workflow: Counted) -> None:
    runs, policy = Runs(comfy, workflow), asked(placements={"text_encoder": "layerwise"})
    before, peak, report = runs.steady(workflow.apply(policy))
    (suggestion,) = report.suggestions
    assert suggestion.key == "vram_budget"
    after, peak_after, report = runs.steady(workflow.apply(with_suggestion(policy, suggestion)))
    assert before - after == pytest.approx(1000 * suggestion.seconds, abs=0.1 * before)
    assert 0.95 * suggestion.bytes <= peak_after - peak <= suggestion.bytes
    assert report.suggestions == ()


@AMPLE
@BOTH
def test_nothing_is_suggested_where_nothing_waits(comfy: ComfyUI, workflow: Counted) -> None:
    _, _, report = Runs(comfy, workflow).steady(workflow.apply(asked()))
    assert report.suggestions == ()
    assert "suggestion" not in report.text()


@TIGHT
@pytest.mark.parametrize("dynamic", [True], ids=["dynamic"])
@pytest.mark.parametrize("steps", [1, 8])
def test_room_is_made_where_the_steps_of_a_diffusion_model_win_by_it(
    comfy: ComfyUI, workflow: Counted, dynamic: bool, steps: int
) -> None:
    workflow.step = lambda step=workflow.step: [step() for _ in range(steps)] and None  # type: ignore[method-assign]
    runs, policy = Runs(comfy, workflow), asked(placements={"text_encoder": "resident"})
    before, _, report = runs.steady(workflow.apply(policy))
    if steps == 1:  # copying the encoder again for each prompt takes longer
        assert report.suggestions == ()
        return
    (suggestion,) = report.suggestions
    assert (suggestion.kind, suggestion.line) == ("room", "text_encoder: layerwise")
    assert "of diffusion_model, so ComfyUI copied them for each step" in suggestion.why
    after, _, report = runs.steady(workflow.apply(with_suggestion(policy, suggestion)))
    assert after < 0.95 * before
    assert report.suggestions == ()
