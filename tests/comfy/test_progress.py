"""ComfyUI's progress bar in the first run of an encoder, whose layers come from the disk."""

from __future__ import annotations

from pathlib import Path

import comfy.model_management as mm
import comfy.utils
import models
import pytest
from comfy_execution.utils import CurrentNodeContext
from placing import place, policy


def test_the_bar_goes_from_layer_to_layer_the_first_time(
    family: models.Family, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mm.unload_all_models()
    placed = place(family, family.make(), policy("layerwise"), tmp_path)
    facts, shown = placed.placements.placed[0].facts, []
    monkeypatch.setattr(
        comfy.utils, "PROGRESS_BAR_HOOK", lambda done, total, *_, **__: shown.append((done, total))
    )
    with CurrentNodeContext("one", "1"):
        family.run(placed.value)
    if facts.name.endswith("encoder"):
        assert {(number, facts.layers) for number in range(1, facts.layers + 1)} <= set(shown)
    else:
        assert (1, facts.layers) not in shown
    shown.clear()
    with CurrentNodeContext("two", "1"):
        family.run(placed.value)
    assert (1, facts.layers) not in shown
