"""The shipped workflows: what the browser loads, what the API queues, and how they look."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from scripts import workflow
from scripts.comfy_client import Prompt
from scripts.places import ROOT
from scripts.refresh_fixtures import twin

FILES = sorted((ROOT / "example_workflows").glob("*.json"))
TITLE_HEIGHT = 30


@pytest.fixture(params=FILES, ids=lambda file: file.stem)
def shipped(request: pytest.FixtureRequest) -> dict[str, Any]:
    return json.loads(request.param.read_text(encoding="utf-8"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_api_twin_is_what_the_frontend_would_queue(file: Path, object_info: dict[str, Any]) -> None:
    """tests/browser holds our converter against the frontend's own."""
    kept = json.loads(twin(file).read_text(encoding="utf-8"))
    assert kept == workflow.load(file, object_info), "run `make fixtures`"


def test_the_plain_graph_has_nothing_of_the_pack_left(plain: Prompt, with_pack: Prompt) -> None:
    removed = {node["class_type"] for id_, node in with_pack.items() if id_ not in plain}
    assert removed == {
        "LayerwiseOffload_PlacementPolicy",
        "LayerwiseOffload_Loader",
        "LayerwiseOffload_PlacementReport",
    }
    for node in plain.values():
        assert all(value[0] in plain for value in node["inputs"].values() if workflow.is_link(value))


def test_every_shipped_workflow_uses_only_nodes_that_exist(
    shipped: dict[str, Any], object_info: dict[str, Any]
) -> None:
    kinds = {node["type"] for node in shipped["nodes"]} - workflow.NOTES
    assert kinds <= set(object_info)


def test_every_node_of_the_pack_is_shown_in_a_workflow(object_info: dict[str, Any]) -> None:
    shown = {node["type"] for file in FILES for node in json.loads(file.read_text("utf-8"))["nodes"]}
    ours = {name for name in object_info if name.startswith(workflow.PACK_PREFIX)}
    assert ours
    assert ours <= shown


def test_sockets_in_the_file_are_the_sockets_of_the_nodes(
    shipped: dict[str, Any], object_info: dict[str, Any]
) -> None:
    for node in shipped["nodes"]:
        if node["type"] in workflow.NOTES:
            continue
        info = object_info[node["type"]]
        known = {name for group in ("required", "optional") for name in info["input"].get(group, {})}
        inputs = {entry["name"] for entry in node["inputs"]} - {"upload"}
        outputs = [[entry["name"], entry["type"]] for entry in node["outputs"]]
        existing = [list(pair) for pair in zip(info["output_name"], info["output"], strict=True)]
        if node["type"].startswith(workflow.PACK_PREFIX):
            assert (inputs, outputs) == (known, existing), node["type"]
        else:  # core's nodes grow from version to version, and the file is for all of them
            assert inputs <= known, node["type"]
            assert outputs == existing[: len(outputs)], node["type"]


def test_links_agree_with_the_sockets_at_both_ends(shipped: dict[str, Any]) -> None:
    nodes = {node["id"]: node for node in shipped["nodes"]}
    for link, origin, slot, target, place, kind in shipped["links"]:
        assert link in nodes[origin]["outputs"][slot]["links"]
        assert nodes[target]["inputs"][place]["link"] == link
        assert nodes[origin]["outputs"][slot]["type"] == kind


def test_no_node_covers_another(shipped: dict[str, Any]) -> None:
    for one, other in itertools.combinations(shipped["nodes"], 2):
        assert not overlap(box(one), box(other)), f"{one['type']} covers {other['type']}"


def test_every_group_holds_its_nodes_whole(shipped: dict[str, Any]) -> None:
    """A node that sticks out of its group would stay behind when a person moves the group."""
    for group in shipped["groups"]:
        x, y, width, height = group["bounding"]
        for node in shipped["nodes"]:
            left, top, right, bottom = box(node)
            inside = x <= left and y <= top and right <= x + width and bottom <= y + height
            outside = not overlap((x, y, x + width, y + height), (left, top, right, bottom))
            assert inside or outside, f"{node['type']} sticks out of {group['title']}"


def box(node: dict[str, Any]) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of a node with its title bar."""
    (x, y), (width, height) = node["pos"], node["size"]
    return x, y - TITLE_HEIGHT, x + width, y + height


def overlap(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
