"""What holds for placing in every graph, in both formats."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from hypothesis import given, settings
from random_graphs import TYPES, prompts, workflows

from offload_runtime.workflow import PACK_PREFIX, PLACERS, is_ui, place, remove

POLICY = "version: 1\ncomponents:\n  vae: resident\n"
TAKEN = {kind for sockets in PLACERS.values() for kind in sockets.values()}
"""The types that one of our loaders takes."""
COUNTERS = ("last_node_id", "last_link_id", "state")


def without_counters(document: dict[str, Any]) -> dict[str, Any]:
    """A workflow without how far its ids went."""
    if not is_ui(document):
        return document
    made = deepcopy(document)
    for level in levels(made):
        for name in COUNTERS:
            level.pop(name, None)
    return made


def levels(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    return [workflow, *workflow.get("definitions", {}).get("subgraphs", [])]


def ends(link: Any) -> tuple[Any, int, Any, int]:
    """Origin, its slot, target and its slot."""
    if isinstance(link, dict):
        return link["origin_id"], link["origin_slot"], link["target_id"], link["target_slot"]
    return link[1], link[2], link[3], link[4]


@settings(max_examples=50)
@given(prompts() | workflows())
def test_removing_gives_back_what_was_there(document: dict[str, Any]) -> None:
    before = deepcopy(document)
    done = place(document, POLICY, TYPES.get)
    assert document == before
    back, count = remove(done.document)
    assert without_counters(back) == without_counters(before)
    assert count == 0 or done.loaders
    assert remove(before) == (before, 0)


@settings(max_examples=50)
@given(prompts() | workflows())
def test_placing_again_changes_nothing(document: dict[str, Any]) -> None:
    once = place(document, POLICY, TYPES.get)
    twice = place(once.document, POLICY, TYPES.get)
    assert twice.document == once.document
    assert (twice.loaders, twice.sources) == (0, 0)
    assert twice.left_out == once.left_out


@settings(max_examples=50)
@given(prompts())
def test_all_that_used_a_source_uses_a_loader_and_nothing_else_changes(prompt: dict[str, Any]) -> None:
    made = place(prompt, None, TYPES.get).document
    for name, node in prompt.items():
        now = made[name]
        assert (now["class_type"], now["_meta"], list(now["inputs"])) == (
            node["class_type"],
            node["_meta"],
            list(node["inputs"]),
        )
        for key, value in node["inputs"].items():
            if now["inputs"][key] != value:
                loader = made[now["inputs"][key][0]]
                sockets = list(PLACERS[loader["class_type"]])
                assert loader["inputs"][sockets[now["inputs"][key][1]]] == value
            elif isinstance(value, list) and is_source(prompt, value):
                assert value[0] not in used(made), "something that runs still uses the source itself"


def is_source(prompt: dict[str, Any], link: list[Any]) -> bool:
    kind = TYPES[prompt[link[0]]["class_type"]]
    return kind.outputs[link[1]] in TAKEN and kind.outputs[link[1]] not in kind.takes


def used(prompt: dict[str, Any]) -> set[str]:
    """The nodes that ComfyUI would run."""
    waiting = [name for name, node in prompt.items() if node["class_type"] == "Save"]
    found: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += [value[0] for value in prompt[name]["inputs"].values() if isinstance(value, list)]
    return {
        name
        for name in found
        if any(
            value[0] == name and prompt[other]["class_type"] not in PLACERS
            for other in found
            for value in prompt[other]["inputs"].values()
            if isinstance(value, list) and is_ours_or_source(prompt, value)
        )
    }


def is_ours_or_source(prompt: dict[str, Any], link: list[Any]) -> bool:
    return not prompt[link[0]]["class_type"].startswith(PACK_PREFIX) and is_source(prompt, link)


@settings(max_examples=50)
@given(prompts())
def test_there_is_no_ring_and_no_loader_too_many(prompt: dict[str, Any]) -> None:
    done = place(prompt, None, TYPES.get)
    state: dict[str, int] = {}

    def walk(name: str) -> None:
        assert state.get(name) != 1, "a ring"
        if name not in state:
            state[name] = 1
            for value in done.document[name]["inputs"].values():
                if isinstance(value, list):
                    walk(value[0])
            state[name] = 2

    for name in done.document:
        walk(name)
    filled = [
        (node["class_type"], set(node["inputs"]) & set(PLACERS[node["class_type"]]))
        for node in done.document.values()
        if node["class_type"] in PLACERS
    ]
    assert all(given for _, given in filled)
    assert done.loaders == len(filled)
    if not {"VAEFromModel", "ControlNetOfModel"} & {node["class_type"] for node in prompt.values()}:
        assert done.loaders == sum(
            max((sum(socket in given for _, given in filled) for socket in sockets), default=0)
            for sockets in PLACERS.values()
        )


@settings(max_examples=50)
@given(workflows())
def test_a_workflow_stays_whole(workflow: dict[str, Any]) -> None:
    """Every link is known to both of its ends, once, and no other node changes."""
    made = place(workflow, POLICY, TYPES.get).document
    numbers = [node["id"] for level in levels(made) for node in level["nodes"] if is_new(node)]
    assert len(numbers) == len(set(numbers))
    assert not set(numbers) & {node["id"] for level in levels(workflow) for node in level["nodes"]}
    for before, after in zip(levels(workflow), levels(made), strict=True):
        nodes = {node["id"]: node for node in after["nodes"]}
        for node in before["nodes"]:
            assert unlinked(nodes[node["id"]]) == unlinked(node)
        for link in after["links"]:
            number = link["id"] if isinstance(link, dict) else link[0]
            origin, slot, target, place_there = ends(link)
            if origin in nodes:
                assert nodes[origin]["outputs"][slot]["links"].count(number) == 1
            if target in nodes:
                assert nodes[target]["inputs"][place_there]["link"] == number
        lists = [one for node in after["nodes"] for out in node["outputs"] for one in out["links"] or []]
        assert len(lists) == len(set(lists))


def is_new(node: dict[str, Any]) -> bool:
    return str(node["type"]).startswith(PACK_PREFIX)


def unlinked(node: dict[str, Any]) -> dict[str, Any]:
    return {**node, "outputs": [{**out, "links": None} for out in node["outputs"]]}
