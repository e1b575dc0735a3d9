"""What a report suggests: shown below it, set by one click, taken back by one undo."""

from __future__ import annotations

import re
from typing import Any

import pytest
from comfy_page import ComfyPage
from playwright.sync_api import Locator, expect

POLICY = "LayerwiseOffload_PlacementPolicy"
OVERRIDE = "LayerwiseOffload_SetPlacement"
REPORT = "LayerwiseOffload_PlacementReport"
LOADER = "LayerwiseOffload_Loader"

WHY = "it waited 338 ms for weights, and 7.83 GB of the device were to spare at the peak"
RESIDENT = {
    "kind": "lift",
    "component": "vae",
    "selector": "vae",
    "node": "Placement Policy",
    "widget": "vae",
    "key": "placement",
    "value": "resident",
    "bytes": 2**30,
    "seconds": 0.338,
    "why": f"{WHY}; you set placement layerwise (Placement Policy, node 3)",
    "line": "vae: resident",
    "yaml": "components:\n  vae: resident\n",
    "effect": "+1.00 GB of VRAM, about −338 ms a prompt (an estimate)",
}
BUDGET = RESIDENT | {
    "node": "Set Placement",
    "widget": "vram_budget",
    "key": "vram_budget",
    "value": "8GB",
    "line": "vae: {vram_budget: 8GB}",
    "yaml": "components:\n  vae: {vram_budget: 8GB}\n",
}


@pytest.fixture
def panel(comfy: ComfyPage, decoding: dict[str, str]) -> Locator:
    """The report of a run, in the middle. On a CPU nothing is suggested."""
    comfy.run()
    comfy.center_on(decoding[REPORT])
    found = comfy.page.get_by_role("region", name="Placement report")
    expect(found.locator(".lwo-report")).to_be_visible()
    expect(found.locator("[data-suggestion]")).to_have_count(0)
    return found


def suggest(comfy: ComfyPage, *suggestions: dict[str, Any]) -> None:
    """Hand the outputs over as a history entry does, with suggestions in the report."""
    comfy.page.evaluate(
        """suggestions => {
            const outputs = JSON.parse(JSON.stringify(app.nodeOutputs));
            for (const output of Object.values(outputs)) {
                for (const report of output.placement_report ?? []) report.suggestions = suggestions;
            }
            app.nodeOutputs = outputs;
        }""",
        suggestions,
    )


def apply(panel: Locator, number: int = 0) -> None:
    panel.locator("[data-suggestion]").nth(number).get_by_role("button", name="Apply", exact=True).click()


def test_a_suggestion_is_set_by_one_click_and_taken_back_by_one_undo(
    comfy: ComfyPage, decoding: dict[str, str], panel: Locator
) -> None:
    suggest(comfy, RESIDENT)
    box = panel.locator("[data-suggestion=vae]")
    expect(box).to_contain_text("vae: resident +1.00 GB of VRAM, about −338 ms a prompt (an estimate)")
    expect(box).to_contain_text("you set placement layerwise (Placement Policy, node 3)")
    box.scroll_into_view_if_needed()
    comfy.screenshot("suggestion")
    apply(panel)
    assert comfy.widgets(decoding[POLICY])["vae"] == "resident"
    expect(panel).to_contain_text("The policy has changed since this run.")
    expect(box.get_by_role("button", name="Applied")).to_be_disabled()
    comfy.command("Comfy.Undo")
    comfy.frames(5)
    assert comfy.widgets(decoding[POLICY])["vae"] == "layerwise"
    expect(box.get_by_role("button", name="Apply", exact=True)).to_be_enabled()
    expect(panel).not_to_contain_text("The policy has changed")


def test_what_only_set_placement_has_gets_a_node_at_the_end_of_the_chain(
    comfy: ComfyPage, decoding: dict[str, str], panel: Locator
) -> None:
    before = comfy.workflow()
    suggest(comfy, BUDGET)
    apply(panel)
    added = comfy.node_id(OVERRIDE)
    assert comfy.widgets(added)["component"] == "vae"
    assert comfy.widgets(added)["vram_budget"] == "8GB"
    prompt = comfy.prompt()["output"] if "output" in comfy.prompt() else comfy.prompt()
    assert prompt[decoding[LOADER]]["inputs"]["policy"] == [added, 0]
    assert prompt[added]["inputs"]["base"] == [decoding[POLICY], 0]
    expect(panel).to_contain_text("The policy has changed since this run.")
    expect(panel.get_by_role("button", name="Applied")).to_be_disabled()
    comfy.command("Comfy.Undo")
    comfy.frames(5)
    assert comfy.node_ids(OVERRIDE) == []
    assert len(comfy.workflow()["links"]) == len(before["links"])
    expect(panel).not_to_contain_text("The policy has changed")


def test_several_are_applied_one_after_the_other(
    comfy: ComfyPage, decoding: dict[str, str], panel: Locator
) -> None:
    suggest(comfy, RESIDENT, BUDGET)
    apply(panel, 0)
    apply(panel, 1)
    assert comfy.widgets(decoding[POLICY])["vae"] == "resident"
    assert comfy.widgets(comfy.node_id(OVERRIDE))["vram_budget"] == "8GB"
    expect(panel.get_by_role("button", name="Applied")).to_have_count(2)


def test_without_a_policy_node_one_is_made(
    comfy: ComfyPage, decoding: dict[str, str], panel: Locator
) -> None:
    comfy.page.evaluate("id => app.graph.remove(app.graph.getNodeById(id))", decoding[POLICY])
    comfy.run()
    suggest(comfy, RESIDENT)
    apply(panel)
    made = comfy.node_id(POLICY)
    assert comfy.widgets(made)["vae"] == "resident"
    assert comfy.widgets(made)["text_encoder"] == "auto"
    comfy.command("Comfy.Undo")
    comfy.frames(5)
    assert comfy.node_ids(POLICY) == []


def test_a_policy_from_a_file_gets_a_node_behind_it(
    comfy: ComfyPage, decoding: dict[str, str], panel: Locator
) -> None:
    comfy.page.evaluate("id => app.graph.remove(app.graph.getNodeById(id))", decoding[POLICY])
    file = comfy.add("LayerwiseOffload_LoadPolicy")
    comfy.set_widget(file, "text", "components:\n  vae: layerwise\n")
    comfy.page.evaluate(
        "([file, loader]) => app.graph.getNodeById(file).connect(0, app.graph.getNodeById(loader), 'policy')",
        [file, decoding[LOADER]],
    )
    comfy.run()
    comfy.center_on(decoding[REPORT])
    suggest(comfy, RESIDENT)
    apply(panel)
    assert comfy.widgets(comfy.node_id(OVERRIDE))["placement"] == "resident"
    expect(panel).to_contain_text("The policy has changed since this run.")
    comfy.run()
    expect(panel.locator("[data-component=vae] .lwo-chip")).to_have_text("◆ resident")


def test_a_policy_in_a_subgraph_is_changed_there(
    comfy: ComfyPage, decoding: dict[str, str], panel: Locator
) -> None:
    comfy.to_subgraph(decoding["VAELoader"], decoding[POLICY], decoding[LOADER])
    comfy.run()
    suggest(comfy, RESIDENT)
    apply(panel)
    expect(panel).to_contain_text("The policy has changed since this run.")
    inside = "[...app.graph.subgraphs.values()][0].nodes.find(n => n.comfyClass === %r)"
    value = f"{inside}.widgets.find(w => w.name === 'vae').value"
    assert comfy.page.evaluate(value % POLICY) == "resident"


def test_what_has_no_place_in_the_graph_is_copied(
    comfy: ComfyPage, decoding: dict[str, str], panel: Locator
) -> None:
    comfy.page.evaluate(
        "id => { const n = app.graph.getNodeById(id); n.disconnectInput(n.findInputSlot('placements')); }",
        decoding[REPORT],
    )
    suggest(comfy, RESIDENT)
    comfy.page.evaluate(
        """() => {
            const outputs = JSON.parse(JSON.stringify(app.nodeOutputs));
            for (const output of Object.values(outputs)) {
                for (const decided of output.placement_decisions ?? []) decided.policy_nodes = decided.chain = {};
            }
            app.nodeOutputs = outputs;
        }"""
    )
    comfy.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    panel.get_by_role("button", name=re.compile("^Copy as YAML")).click()
    assert comfy.page.evaluate("navigator.clipboard.readText()") == RESIDENT["yaml"]
