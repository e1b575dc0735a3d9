"""Subgraphs in the UI's format become the nodes that the frontend queues. tests/browser compares with the frontend."""

from __future__ import annotations

from typing import Any

import pytest

from scripts import workflow

OBJECT_INFO: dict[str, Any] = {
    "Loader": {"display_name": "Loader", "input": {"required": {"file": ["COMBO", {}]}}},
    "Patch": {
        "display_name": "Patch",
        "input": {"required": {"model": ["MODEL", {}], "strength": ["FLOAT", {}]}},
    },
    "Save": {"display_name": "Save", "input": {"required": {"model": ["MODEL", {}]}}},
}


def loader(node_id: int, *links: int) -> dict[str, Any]:
    return {
        "id": node_id,
        "type": "Loader",
        "inputs": [],
        "outputs": [{"name": "MODEL", "type": "MODEL", "links": list(links)}],
        "widgets_values": ["a.safetensors"],
    }


def patch(node_id: int, link: int, strength_link: int | None = None) -> dict[str, Any]:
    inputs: list[dict[str, Any]] = [{"name": "model", "type": "MODEL", "link": link}]
    if strength_link is not None:
        widget = {"name": "strength"}
        inputs.append({"name": "strength", "type": "FLOAT", "link": strength_link, "widget": widget})
    return {"id": node_id, "type": "Patch", "inputs": inputs, "outputs": [], "widgets_values": [0.5]}


def instance(node_id: int, kind: str, link: int | None, **more: Any) -> dict[str, Any]:
    """A node that stands for a subgraph with one MODEL input and one MODEL output."""
    return {
        "id": node_id,
        "type": kind,
        "inputs": [{"name": "model", "type": "MODEL", "link": link}],
        "outputs": [{"name": "MODEL", "type": "MODEL"}],
        **more,
    }


def definition(kind: str, *nodes: dict[str, Any], links: list[list[int]], **promoted: int) -> dict[str, Any]:
    """A subgraph. `links` are id, origin, slot, target, slot; `promoted` are further inputs and their links."""
    names = ("id", "origin_id", "origin_slot", "target_id", "target_slot")
    return {
        "id": kind,
        "nodes": list(nodes),
        "links": [dict(zip(names, link, strict=True)) for link in links],
        "inputs": [
            {"name": "model", "linkIds": [1]},
            *({"name": name, "linkIds": [link]} for name, link in promoted.items()),
        ],
        "outputs": [{"name": "MODEL", "linkIds": [2]}],
    }


def save(link: int) -> dict[str, Any]:
    inputs = [{"name": "model", "type": "MODEL", "link": link}]
    return {"id": 9, "type": "Save", "inputs": inputs, "outputs": [], "widgets_values": None}


def queued(middle: dict[str, Any], *definitions: dict[str, Any]) -> workflow.Prompt:
    """Loader 1 → the node (8) → Save 9, as it is queued."""
    document = {
        "nodes": [loader(1, 1), middle, save(2)],
        "links": [[1, 1, 0, 8, 0, "MODEL"], [2, 8, 0, 9, 0, "MODEL"]],
        "definitions": {"subgraphs": list(definitions)},
    }
    return workflow.to_api(document, OBJECT_INFO)


ONE_PATCH = definition("A", patch(3, 1), links=[[1, -10, 0, 3, 0], [2, 3, 0, -20, 0]])
PROMOTED = definition(
    "A", patch(3, 1, 3), links=[[1, -10, 0, 3, 0], [2, 3, 0, -20, 0], [3, -10, 1, 3, 1]], power=3
)


def test_links_go_in_and_out_of_a_subgraph() -> None:
    prompt = queued(instance(8, "A", 1), ONE_PATCH)
    assert set(prompt) == {"1", "8:3", "9"}
    assert prompt["8:3"]["inputs"] == {"model": ["1", 0], "strength": 0.5}
    assert prompt["9"]["inputs"] == {"model": ["8:3", 0]}


def test_one_definition_can_be_used_twice() -> None:
    both = definition(
        "B",
        instance(4, "A", 1),
        instance(5, "A", 3),
        links=[[1, -10, 0, 4, 0], [3, 4, 0, 5, 0], [2, 5, 0, -20, 0]],
    )
    prompt = queued(instance(8, "B", 1), both, ONE_PATCH)
    assert set(prompt) == {"1", "8:4:3", "8:5:3", "9"}
    assert prompt["8:4:3"]["inputs"]["model"] == ["1", 0]
    assert prompt["8:5:3"]["inputs"]["model"] == ["8:4:3", 0]
    assert prompt["9"]["inputs"]["model"] == ["8:5:3", 0]


def test_a_link_that_passes_a_subgraph_untouched_arrives() -> None:
    straight = definition("A", links=[[1, -10, 0, -20, 0]])
    assert queued(instance(8, "A", 1), straight)["9"]["inputs"]["model"] == ["1", 0]


def test_a_promoted_value_wins_over_the_one_inside() -> None:
    assert queued(instance(8, "A", 1, widgets_values=[0.9]), PROMOTED)["8:3"]["inputs"]["strength"] == 0.9


def test_a_promoted_value_in_the_older_way_wins_too() -> None:
    middle = instance(8, "A", 1, widgets_values=[0.9], properties={"proxyWidgets": [["3", "strength"]]})
    assert queued(middle, ONE_PATCH)["8:3"]["inputs"]["strength"] == 0.9
    middle = instance(8, "A", 1, widgets_values=[0.9], properties={"proxyWidgets": [["-1", "power"]]})
    assert queued(middle, PROMOTED)["8:3"]["inputs"]["strength"] == 0.9


def test_without_a_promoted_value_the_one_inside_counts() -> None:
    assert queued(instance(8, "A", 1), PROMOTED)["8:3"]["inputs"]["strength"] == 0.5


def test_a_value_promoted_through_two_levels_arrives() -> None:
    inner = instance(4, "A", 1)
    inner["inputs"].append({"name": "power", "type": "FLOAT", "link": 3, "widget": {"name": "power"}})
    outer = definition("B", inner, links=[[1, -10, 0, 4, 0], [2, 4, 0, -20, 0], [3, -10, 1, 4, 1]], strong=3)
    prompt = queued(instance(8, "B", 1, widgets_values=[0.7]), outer, PROMOTED)
    assert prompt["8:4:3"]["inputs"]["strength"] == 0.7


@pytest.mark.parametrize(("mode", "model"), [(workflow.BYPASSED, ["1", 0]), (workflow.MUTED, None)])
def test_a_subgraph_can_be_bypassed_or_muted_as_a_whole(mode: int, model: list[Any] | None) -> None:
    prompt = queued(instance(8, "A", 1, mode=mode), ONE_PATCH)
    assert set(prompt) == {"1", "9"}
    assert prompt["9"]["inputs"].get("model") == model


@pytest.mark.parametrize("definitions", [{}, {"subgraphs": []}, {"subgraphs": [ONE_PATCH]}])
def test_a_file_that_uses_no_subgraph_is_read_whatever_it_defines(definitions: Any) -> None:
    document = {"nodes": [loader(1)], "links": [], "definitions": definitions}
    assert set(workflow.to_api(document, OBJECT_INFO)) == {"1"}
