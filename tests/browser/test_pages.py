"""The page with the pack: it loads, the shipped workflows open and run, and every node explains itself."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest
from comfy_page import RENDERERS, ComfyPage
from playwright.sync_api import expect

from scripts import workflow
from scripts.places import ROOT

HELP = sorted((ROOT / "web" / "docs").glob("*.md"))
REPORT = "LayerwiseOffload_PlacementReport"


def test_the_page_has_the_packs_nodes_and_this_renderer(
    comfy: ComfyPage, object_info: dict[str, Any]
) -> None:
    known = comfy.page.evaluate("Object.keys(LiteGraph.registered_node_types)")
    ours = {kind for kind in object_info if kind.startswith(workflow.PACK_PREFIX)}
    assert ours
    assert ours <= set(known)
    assert comfy.page.evaluate("app.extensions.some(e => e.name === 'LayerwiseOffload')")
    assert comfy.page.evaluate("Boolean(LiteGraph.vueNodesMode)") is RENDERERS[comfy.renderer]


def test_a_shipped_workflow_opens_whole(comfy: ComfyPage, shipped: dict[str, Any]) -> None:
    comfy.load(shipped)
    comfy.fit()
    assert comfy.missing_types() == []
    assert len(comfy.workflow()["nodes"]) == len(shipped["nodes"])
    expect(comfy.page.get_by_text(re.compile(r"Missing (node|model)|errors? found"))).to_have_count(0)
    assert comfy.requests_outside == []


def test_no_node_of_a_shipped_workflow_covers_another(comfy: ComfyPage, shipped: dict[str, Any]) -> None:
    comfy.load(shipped)
    comfy.fit()
    boxes = comfy.boxes()
    assert len(boxes) == len(shipped["nodes"])
    pairs = itertools.combinations(boxes, 2)
    assert [(one, other) for one, other in pairs if boxes[one].covers(boxes[other])] == []


def test_the_frontend_queues_what_our_own_converter_says(
    comfy: ComfyPage, shipped: dict[str, Any], object_info: dict[str, Any]
) -> None:
    """`make demo` and the API twins rest on the converter; here the frontend itself is the judge."""
    comfy.load(shipped)
    assert comfy.prompt() == workflow.to_api(shipped, object_info)


def test_a_run_paints_the_report(comfy: ComfyPage, decoding: dict[str, str]) -> None:
    comfy.center_on(decoding[REPORT])  # LiteGraph hides what is out of view
    shown = comfy.page.get_by_role("region", name="Placement report")
    expect(shown).to_contain_text("Run the workflow")
    outputs = comfy.run()
    (text,) = outputs[decoding[REPORT]]["text"]
    assert "vae" in text
    for line in text.splitlines():
        expect(shown).to_contain_text(line)


@pytest.mark.parametrize("page", HELP, ids=lambda page: page.stem.removeprefix(workflow.PACK_PREFIX))
def test_the_info_button_of_a_node_shows_its_help_page(comfy: ComfyPage, page: Path) -> None:
    node_id = comfy.add(page.stem)
    comfy.select(node_id)
    comfy.page.get_by_test_id("info-button").click()
    panel = comfy.page.get_by_test_id("properties-panel")
    lines = page.read_text(encoding="utf-8").splitlines()
    for heading in (line.lstrip("# ") for line in lines if line.startswith("#")):
        expect(panel.get_by_role("heading", name=heading, exact=True).first).to_be_visible()
    comfy.page.get_by_role("button", name="Toggle properties panel").click()
