"""Workflows of other versions of the pack: a value stays with its name when there is a widget more or less."""

from __future__ import annotations

from typing import Any

import pytest
from comfy_page import ComfyPage
from playwright.sync_api import expect

POLICY = "LayerwiseOffload_PlacementPolicy"
EXPLICIT = {"mode": "memory", "image_encoder": "offload", "vae": "layerwise", "vram_budget": "50%"}
# A frontend that keeps values by name itself, and one that does not yet.
FRONTENDS = pytest.mark.parametrize("keeps_names", [True, False], ids=["newer_frontend", "older_frontend"])


def saved(comfy: ComfyPage, change: str, keeps_names: bool) -> dict[str, Any]:
    """The workflow as a version saves it whose node differs by a change of its widgets."""
    node_id = comfy.build({POLICY: EXPLICIT}, [])[POLICY]
    comfy.page.evaluate(f"id => {{ const node = app.canvas.graph.getNodeById(id); {change} }}", node_id)
    workflow = comfy.workflow()
    if not keeps_names:
        workflow["nodes"][0].pop("widgets_values_named", None)
    comfy.reset()
    return workflow


def values(comfy: ComfyPage, workflow: dict[str, Any]) -> dict[str, Any]:
    """What an opened workflow sets explicitly."""
    comfy.load(workflow)
    (node,) = comfy.prompt().values()
    return {name: value for name, value in node["inputs"].items() if value != "auto"}


@FRONTENDS
def test_a_workflow_from_before_a_widget_leaves_it_at_auto(comfy: ComfyPage, keeps_names: bool) -> None:
    without = 'node.removeWidget(node.widgets.find(w => w.name === "image_encoder"))'
    workflow = saved(comfy, without, keeps_names)
    assert values(comfy, workflow) == {k: v for k, v in EXPLICIT.items() if k != "image_encoder"}
    again = comfy.workflow()
    comfy.reset()
    assert values(comfy, again) == {k: v for k, v in EXPLICIT.items() if k != "image_encoder"}


@FRONTENDS
def test_a_workflow_with_a_widget_more_keeps_the_others_and_says_what_is_lost(
    comfy: ComfyPage, keeps_names: bool
) -> None:
    more = """
        const made = node.addWidget("combo", "audio_encoder", "cpu", () => {}, { values: ["auto", "cpu"] });
        node.widgets.splice(node.widgets.indexOf(made), 1);
        node.widgets.splice(2, 0, made);
    """
    workflow = saved(comfy, more, keeps_names)
    assert values(comfy, workflow) == EXPLICIT
    expect(comfy.page.get_by_text("audio_encoder of node 1 was cpu")).to_be_visible()


def test_a_value_that_somebody_changed_in_the_file_counts(comfy: ComfyPage) -> None:
    """By position, as every tool knows it."""
    workflow = saved(comfy, "", keeps_names=False)
    place = workflow["nodes"][0]["widgets_values"].index("layerwise")
    workflow["nodes"][0]["widgets_values"][place] = "resident"
    assert values(comfy, workflow) == EXPLICIT | {"vae": "resident"}


def test_a_workflow_of_the_first_version_has_no_names_and_opens_as_ever(comfy: ComfyPage) -> None:
    workflow = saved(comfy, "", keeps_names=False)
    workflow["nodes"][0]["properties"] = {}
    assert values(comfy, workflow) == EXPLICIT


def test_opened_without_the_pack_from_an_api_prompt_and_saved_it_keeps_its_values(
    comfy: ComfyPage, elsewhere: ComfyPage
) -> None:
    """There, ComfyUI numbers the values that the prompt happens to have."""
    comfy.build({POLICY: EXPLICIT}, [])
    prompt = comfy.prompt()
    (node,) = prompt.values()
    node["inputs"] = dict(EXPLICIT)
    elsewhere.page.evaluate("prompt => app.loadApiJson(prompt, 'sent.json')", prompt)
    elsewhere.frames()
    sent = elsewhere.workflow()
    if not sent["nodes"]:
        pytest.skip("this frontend leaves nodes out that it does not know")
    comfy.reset()
    assert values(comfy, sent) == EXPLICIT
