"""What a person sees of the nodes before any of them runs: they are found, and their names can be read."""

from __future__ import annotations

from typing import Any

import pytest
from comfy_page import RENDERERS, ComfyPage
from playwright.sync_api import expect

from scripts.workflow import PACK_PREFIX

FOUND = ("Placement Policy", "Layerwise Offload Loader")

LITEGRAPH_NEEDS = """id => {
    const node = app.canvas.graph.getNodeById(id), context = app.canvas.canvas.getContext("2d");
    const long = (font, ...texts) => {
        context.font = font;
        return texts.reduce((sum, text) => sum + context.measureText(text ?? "").width, 0);
    };
    const name = slot => slot && (slot.label ?? slot.localized_name ?? slot.name);
    const inputs = node.inputs.filter(input => !input.widget);
    const rows = Math.max(inputs.length, node.outputs.length);
    const slots = [...Array(rows).keys()].map(i => 50 + long("14px Arial", name(inputs[i]), name(node.outputs[i])));
    const widgets = (node.widgets ?? []).filter(w => !w.element)
        .map(w => 60 + long("12px Arial", w.label ?? w.name, w.type === "combo" ? w._displayValue : ""));
    return Math.max(60 + long("16px Arial", node.title), ...slots, ...widgets) - node.size[0];
}"""
NODES2_CUT = """id => [...document.querySelectorAll(`[data-node-id='${id}'] :is(span, div)`)]
    .filter(e => !e.children.length && e.textContent.trim() && e.scrollWidth > e.clientWidth + 1 && e.clientWidth)
    .map(e => e.textContent)"""


def test_no_name_is_cut_on_a_new_node(comfy: ComfyPage, object_info: dict[str, Any]) -> None:
    for kind in (kind for kind in object_info if kind.startswith(PACK_PREFIX)):
        comfy.reset()
        node_id = comfy.add(kind)
        comfy.page.evaluate(
            """id => {
                const node = app.canvas.graph.getNodeById(id);
                const choice = node.widgets?.find(w => w.name === "component");
                if (choice) choice.value = choice.options.values.reduce((a, b) => (b.length > a.length ? b : a));
            }""",
            node_id,
        )
        comfy.frames(4)
        if RENDERERS[comfy.renderer]:
            assert comfy.page.evaluate(NODES2_CUT, node_id) == [], kind
        else:
            assert comfy.page.evaluate(LITEGRAPH_NEEDS, node_id) <= 0, kind


@pytest.mark.parametrize("words", ["low vram", "block swap"])
def test_the_search_finds_the_pack_by_what_people_look_for(comfy: ComfyPage, words: str) -> None:
    """ComfyUI 0.3.75 does not hand on what else a node is called."""
    comfy.page.mouse.dblclick(800, 450)
    box = comfy.page.get_by_role("combobox").or_(comfy.page.get_by_placeholder("Search")).last
    box.fill(words)
    for name in FOUND:
        expect(comfy.page.get_by_role("option").filter(has_text=name).first).to_be_visible()
    comfy.page.keyboard.press("Escape")
    node_id = comfy.add("LayerwiseOffload_PlacementPolicy")
    assert comfy.workflow()["nodes"][0].get("title", "Placement Policy") == "Placement Policy"
    assert comfy.page.evaluate("id => app.canvas.graph.getNodeById(id).title", node_id) == "Placement Policy"


def test_a_workflow_with_the_former_socket_types_keeps_its_links(
    comfy: ComfyPage, example: dict[str, Any]
) -> None:
    """Until then they were called as another pack may call its own."""
    former = {"LAYERWISE_POLICY": "PLACEMENT_POLICY", "LAYERWISE_PLACEMENTS": "PLACEMENTS"}

    def renamed(part: Any) -> Any:
        if isinstance(part, list):
            return [renamed(one) for one in part]
        if isinstance(part, dict):
            return {key: renamed(value) for key, value in part.items()}
        return former.get(part, part) if isinstance(part, str) else part

    comfy.load(example)
    now = comfy.prompt()
    comfy.reset()
    comfy.load(renamed(example))
    assert comfy.prompt() == now
