"""The names on our nodes can be read: no label of a widget is cut, at the width that a new node has."""

from __future__ import annotations

import pytest
from comfy_page import ComfyPage

PREFIX = "LayerwiseOffload_"


def cut_names(comfy: ComfyPage) -> dict[str, list[str]]:
    """Put each of our nodes on the canvas; return the names that Nodes 2.0 shows only in part, by node type."""
    kinds = comfy.page.evaluate(
        "prefix => Object.keys(LiteGraph.registered_node_types).filter(kind => kind.startsWith(prefix))",
        PREFIX,
    )
    found = {}
    for kind in kinds:
        node_id = comfy.add(kind)
        comfy.page.wait_for_function("id => document.querySelector(`[data-node-id='${id}']`)", arg=node_id)
        comfy.frames(3)
        cut = comfy.page.evaluate(
            """id => {
                const node = app.canvas.graph.getNodeById(id);
                const shown = (node.widgets ?? []).filter(
                    w => !w.element && !w.hidden && w.type !== "hidden" && !w.options?.advanced && !w.advanced);
                const plain = (text) => text.trim().replace(/^[◆◇] /, "");  // without our mark
                const labels = new Set(shown.map(w => plain(w.label ?? w.name)));
                const leaves = [...document.querySelectorAll(`[data-node-id='${id}'] *`)]
                    .filter(e => !e.children.length && labels.has(plain(e.textContent)));
                for (const leaf of leaves) labels.delete(plain(leaf.textContent));
                return [
                    ...[...labels].map(name => `${name} is not there`),
                    ...leaves
                        .filter(e => e.scrollWidth > e.clientWidth && getComputedStyle(e).overflow !== "visible")
                        .map(e => `${e.textContent} ${e.clientWidth} < ${e.scrollWidth}`),
                ];
            }""",
            node_id,
        )
        if cut:
            found[kind.removeprefix(PREFIX)] = cut
        comfy.page.evaluate("id => app.canvas.graph.remove(app.canvas.graph.getNodeById(id))", node_id)
    return found


@pytest.mark.parametrize("language", ["comfy", "chinese"])
def test_no_name_of_a_widget_is_cut(tab: ComfyPage, language: str, request: pytest.FixtureRequest) -> None:
    if tab.renderer == "litegraph":
        pytest.skip("the canvas draws names, and cuts the values")
    assert cut_names(request.getfixturevalue(language)) == {}
