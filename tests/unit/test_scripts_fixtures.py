"""What `make fixtures` refuses: a node that would read saved workflows otherwise."""

from __future__ import annotations

from typing import Any

import pytest

from scripts.problem import Problem
from scripts.refresh_fixtures import require_growth


def node(*widgets: str, outputs: tuple[str, ...] = ("policy",)) -> dict[str, Any]:
    inputs = [["base", "LAYERWISE_POLICY", {}], *([name, "COMBO", {}] for name in widgets)]
    return {"required": [], "optional": inputs, "outputs": [[name, "POLICY"] for name in outputs]}


BEFORE = {"Node": node("mode", "vae")}


@pytest.mark.parametrize(
    "after",
    [
        {"Node": node("mode", "vae")},
        {"Node": node("mode", "vae", "strict", outputs=("policy", "text")), "New": node("x")},
    ],
)
def test_what_grows_at_its_end_is_written(after: dict[str, Any]) -> None:
    require_growth(BEFORE, after)


@pytest.mark.parametrize(
    ("after", "said"),
    [
        ({"Node": node("mode", "image_encoder", "vae")}, "mode, vae and are mode, image_encoder, vae"),
        ({"Node": node("vae")}, "the widgets"),
        ({"Node": node("mode", "vae", outputs=("text", "policy"))}, "the outputs"),
        ({}, "Node"),
    ],
)
def test_what_moves_or_goes_is_refused(after: dict[str, Any], said: str) -> None:
    with pytest.raises(Problem, match=said):
        require_growth(BEFORE, after)
