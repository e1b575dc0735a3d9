"""The Placement Report node: the table and the text, painted from the executed output alone."""

from __future__ import annotations

import re

import pytest
from comfy_page import ComfyPage
from playwright.sync_api import Locator, expect

POLICY = "LayerwiseOffload_PlacementPolicy"
REPORT = "LayerwiseOffload_PlacementReport"


@pytest.fixture
def panel(comfy: ComfyPage, decoding: dict[str, str]) -> Locator:
    """The report of a run, in the middle."""
    comfy.run()
    comfy.center_on(decoding[REPORT])
    return comfy.page.get_by_role("region", name="Placement report")


@pytest.fixture
def shown(panel: Locator) -> Locator:
    """The same with its details, which is all there is in words."""
    panel.locator("details").evaluate("e => { e.open = true }")
    return panel


def test_the_bars_say_where_the_bytes_are_and_what_was_measured(panel: Locator) -> None:
    expect(panel.get_by_role("table")).not_to_be_visible()
    vae = panel.locator("[data-component=vae]")
    expect(vae.locator(".lwo-chip")).to_have_text("◆ layerwise")
    expect(vae).to_contain_text(re.compile(r"moved \d+ \w+ in \d+ layer runs · computed [\d.]+ m?s"))
    where = vae.get_by_role("img").get_attribute("aria-label")
    assert where is not None
    assert re.fullmatch(r"slot \d+ MB, memory \d+ KB, model file \d+ MB", where), where
    parts = vae.locator("[data-bytes]:not([data-kind=slot])").evaluate_all(
        "all => all.map(e => Number(e.dataset.bytes))"
    )
    total = panel.evaluate("() => app.nodeOutputs")
    report = next(o["placement_report"][-1] for o in total.values() if "placement_report" in o)
    assert sum(parts) == next(row["bytes"] for row in report["rows"] if row["component"] == "vae")
    expect(panel.locator(".lwo-head").first).to_contain_text("of memory at the peak of ComfyUI")
    expect(panel.locator(".lwo-when li").first).to_be_visible()


def test_a_report_of_another_policy_says_so(
    comfy: ComfyPage, decoding: dict[str, str], panel: Locator
) -> None:
    expect(panel).not_to_contain_text("The policy has changed")
    comfy.page.evaluate(
        """id => {
            app.canvas.emitBeforeChange();
            app.canvas.graph.getNodeById(id).widgets.find(w => w.name === "vae").value = "resident";
            app.canvas.emitAfterChange();
        }""",
        decoding[POLICY],
    )
    expect(panel).to_contain_text("The policy has changed since this run.")
    comfy.command("Comfy.Undo")
    expect(panel).not_to_contain_text("The policy has changed")


def test_the_table_says_what_was_asked_and_applied_and_why(
    comfy: ComfyPage, decoding: dict[str, str], shown: Locator
) -> None:
    heads = shown.get_by_role("columnheader")
    expect(heads).to_have_text(["component", "asked", "applied", "why"])
    row = shown.get_by_role("row", name="vae")
    cells = row.get_by_role("cell")
    expect(cells.nth(0)).to_have_text(f"layerwise (Placement Policy, node {decoding[POLICY]})")
    expect(cells.nth(1)).to_contain_text("layerwise: ")
    expect(cells.nth(2)).to_contain_text("set by Placement Policy")


def test_the_text_is_below_the_table_and_can_be_selected(shown: Locator) -> None:
    text = shown.locator("pre")
    expect(text).to_contain_text("Placement report · computes on")
    table = shown.get_by_role("table").bounding_box()
    below = text.bounding_box()
    assert table is not None
    assert below is not None
    assert below["y"] >= table["y"] + table["height"]
    assert text.evaluate("e => getComputedStyle(e).userSelect") == "text"


def test_it_is_painted_from_the_output_alone(
    comfy: ComfyPage, decoding: dict[str, str], shown: Locator
) -> None:
    """A history entry hands its outputs over as a whole; the node was not executed in this tab."""
    outputs = comfy.page.evaluate("JSON.parse(JSON.stringify(app.nodeOutputs))")
    comfy.page.evaluate("app.nodeOutputs = {}")
    expect(shown).to_contain_text("Run the workflow")
    comfy.page.evaluate("outputs => { app.nodeOutputs = outputs }", outputs)
    expect(shown.get_by_role("row", name="vae")).to_be_visible()


def test_it_survives_an_undo_and_another_run(
    comfy: ComfyPage, decoding: dict[str, str], panel: Locator
) -> None:
    comfy.page.evaluate(
        """id => {
            app.canvas.emitBeforeChange();
            const widget = app.canvas.graph.getNodeById(id).widgets.find(w => w.name === "vae");
            widget.value = "resident";
            app.canvas.emitAfterChange();
        }""",
        decoding[POLICY],
    )
    comfy.run()
    asked = panel.locator("[data-component=vae] .lwo-chip")
    expect(asked).to_have_text("◆ resident")
    comfy.command("Comfy.Undo")
    comfy.frames(5)
    expect(asked).to_have_text("◆ resident")
    comfy.run()
    expect(asked).to_have_text("◆ layerwise")


def test_the_wheel_scrolls_it_only_when_it_has_the_focus(comfy: ComfyPage, shown: Locator) -> None:
    assert shown.evaluate("e => e.scrollHeight > e.clientHeight")
    shown.hover()
    comfy.page.mouse.wheel(0, -120)
    comfy.page.wait_for_function("app.canvas.ds.scale > 1")
    assert shown.evaluate("e => e.scrollTop") == 0
    shown.focus()
    scale = comfy.page.evaluate("app.canvas.ds.scale")
    shown.hover()
    comfy.page.mouse.wheel(0, 120)
    comfy.page.wait_for_function("document.querySelector('.lwo-scroll').scrollTop > 0")
    assert comfy.page.evaluate("app.canvas.ds.scale") == scale


def test_it_is_no_part_of_the_workflow_and_makes_no_request_outside(
    comfy: ComfyPage, decoding: dict[str, str], shown: Locator
) -> None:
    expect(shown.get_by_role("row", name="vae")).to_be_visible()
    assert "layerwise_offload_text" not in str(comfy.workflow())
    assert "layerwise_offload_text" not in str(comfy.prompt())
    assert comfy.requests_outside == []
