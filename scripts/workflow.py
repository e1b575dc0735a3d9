"""Workflows in their two formats: the UI's JSON (with positions and links) and the API's (what is queued).

Standard library only. `to_api` does what the frontend does when a person presses Run; `without_pack` removes
this pack's nodes from an API graph, which gives the plain graph to compare with.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from offload_runtime.policy.sockets import OTHERS, SOCKETS

from . import widget_values
from .problem import Problem
from .subgraphs import unfolded

Workflow = dict[str, Any]
Prompt = dict[str, dict[str, Any]]
ObjectInfo = dict[str, Any]
Source = tuple[str, int]  # node id, output slot

NOTES = {"Note", "MarkdownNote"}
MUTED, BYPASSED = 2, 4

PACK_PREFIX = "LayerwiseOffload_"
# Where this pack's nodes keep their values by name, too (web/modules/saved_values.mjs).
VALUES_BY_NAME = "layerwise_offload_values"
# The outputs of these nodes hand on these inputs, slot by slot.
PASSES_ON = {f"{PACK_PREFIX}Loader": tuple(SOCKETS), f"{PACK_PREFIX}OtherModels": tuple(OTHERS)}


def load(file: Path, object_info: ObjectInfo) -> Prompt:
    """Read a workflow file of either format as an API prompt."""
    return to_prompt(read(file), object_info)


def read(file: Path) -> Workflow | Prompt:
    """Read a workflow file of either format as it is.

    Raises:
        Problem: it cannot be read, or is no workflow.
    """
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise Problem(f"the workflow {file} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise Problem(f"the workflow {file} is not JSON: {error}.") from error
    if isinstance(document, dict) and (_is_ui_format(document) or _is_prompt(document)):
        return document
    raise Problem(f"{file} is neither a workflow nor an API prompt; use ComfyUI's Save or Export (API).")


def to_prompt(document: Workflow | Prompt, object_info: ObjectInfo) -> Prompt:
    """Turn what `read` gives into an API prompt."""
    return to_api(document, object_info) if _is_ui_format(document) else document


def to_api(workflow: Workflow, object_info: ObjectInfo) -> Prompt:
    """Convert a UI workflow to the prompt that the frontend would queue.

    Muted nodes and notes vanish; bypassed nodes and reroutes hand their input on; primitives become values;
    subgraphs are unfolded, and node 3 inside of node 8 is called "8:3".

    Raises:
        Problem: the workflow has a node type that `object_info` does not have.
    """
    graph = _Graph(unfolded(workflow))
    prompt: Prompt = {}
    for node in graph.in_order():
        kind = node["type"]
        if node.get("mode") in (MUTED, BYPASSED) or kind in NOTES or kind in ("Reroute", "PrimitiveNode"):
            continue
        if kind not in object_info:
            raise Problem(f"node {node['id']} has the type {kind}, which this ComfyUI does not know.")
        prompt[str(node["id"])] = {
            "inputs": _inputs(graph, node, object_info[kind]),
            "class_type": kind,
            "_meta": {"title": node.get("title") or object_info[kind].get("display_name") or kind},
        }
    return _without_dangling(prompt)


def without_pack(prompt: Prompt) -> Prompt:
    """The same prompt without this pack: its loaders are spliced out, its other nodes dropped.

    A node that reads something only this pack makes (a report, say) is dropped too.
    """
    gone = {node_id for node_id, node in prompt.items() if node["class_type"].startswith(PACK_PREFIX)}
    plain: Prompt = {}
    for node_id, node in prompt.items():
        if node_id not in gone:
            plain[node_id] = {**node, "inputs": {k: _spliced(prompt, v) for k, v in node["inputs"].items()}}
    return _without_readers_of(plain, gone)


def loader_input(prompt: Prompt, source: Source) -> Any:
    """What a loader's output hands on: the link into the matching input, or None where there is none."""
    node_id, slot = source
    names = PASSES_ON[prompt[node_id]["class_type"]]
    return prompt[node_id]["inputs"].get(names[slot]) if slot < len(names) else None


def is_link(value: Any) -> bool:
    """Whether a prompt's input value is a link `[node id, slot]`."""
    return (
        isinstance(value, list)
        and len(value) == 2
        and isinstance(value[0], str)
        and isinstance(value[1], int)
    )


class _Graph:
    """A UI workflow's nodes and links by id."""

    def __init__(self, workflow: Workflow) -> None:
        self.nodes = {node["id"]: node for node in workflow["nodes"]}
        self.sources: dict[Any, tuple[Any, int]] = {}
        for link in workflow.get("links", []):
            if isinstance(link, dict):
                self.sources[link["id"]] = (link["origin_id"], link["origin_slot"])
            else:
                self.sources[link[0]] = (link[1], link[2])

    def in_order(self) -> Iterator[dict[str, Any]]:
        """Nodes in the order that the frontend lists them."""
        yield from sorted(self.nodes.values(), key=lambda node: node.get("order", 0))

    def value_of(self, link_id: Any) -> Any:
        """What a link delivers: `[node id, slot]`, a primitive's value in a 1-tuple, or None when nothing."""
        seen = set()
        while link_id is not None and link_id not in seen:
            seen.add(link_id)
            origin, slot = self.sources.get(link_id, (None, 0))
            node = self.nodes.get(origin)
            if node is None or node.get("mode") == MUTED:
                return None
            if node["type"] == "PrimitiveNode":
                return (node["widgets_values"][0],)
            if node["type"] == "Reroute":
                link_id = node["inputs"][0].get("link")
            elif node.get("mode") == BYPASSED:
                link_id = _bypass(node, slot)
            else:
                return [str(origin), slot]
        return None


def _bypass(node: dict[str, Any], slot: int) -> Any:
    """The link that a bypassed node's output hands on: the input in its place if the type fits, else any."""
    inputs, kind = node.get("inputs", []), node["outputs"][slot]["type"]
    candidates = inputs[slot : slot + 1] + inputs
    return next((entry.get("link") for entry in candidates if entry["type"] == kind), None)


def _inputs(graph: _Graph, node: dict[str, Any], info: dict[str, Any]) -> dict[str, Any]:
    values = _widget_values(node, info)
    for entry in node.get("inputs") or []:
        delivered = graph.value_of(entry.get("link"))
        if isinstance(delivered, tuple):
            values[entry["name"]] = delivered[0]
        elif delivered is not None:
            values[entry["name"]] = delivered
    return values


def _widget_values(node: dict[str, Any], info: dict[str, Any]) -> dict[str, Any]:
    """The node's widget values by input name."""
    stored = node.get("widgets_values") or []
    names = [name for name, _ in widget_values.widgets(info["input"])]
    named = (node.get("properties") or {}).get(VALUES_BY_NAME)
    if named is not None and (list(named) != names or len(stored) != len(names)):
        stored = named  # another version of the node saved it
    return widget_values.by_name(info["input"], stored)


def _without_dangling(prompt: Prompt) -> Prompt:
    """Drop links to nodes that did not make it into the prompt."""
    for node in prompt.values():
        node["inputs"] = {
            name: value for name, value in node["inputs"].items() if not is_link(value) or value[0] in prompt
        }
    return prompt


def _spliced(prompt: Prompt, value: Any) -> Any:
    """Follow a link through any number of loaders to what stands before them."""
    while is_link(value) and prompt.get(value[0], {}).get("class_type") in PASSES_ON:
        before = loader_input(prompt, (value[0], value[1]))
        if before is None:
            break  # one of the loader's own outputs
        value = before
    return value


def _without_readers_of(plain: Prompt, gone: set[str]) -> Prompt:
    while True:
        readers = {
            node_id
            for node_id, node in plain.items()
            if any(is_link(value) and value[0] in gone for value in node["inputs"].values())
        }
        if not readers:
            return plain
        gone = gone | readers
        plain = {node_id: node for node_id, node in plain.items() if node_id not in readers}


def _is_ui_format(document: Workflow | Prompt) -> bool:
    return isinstance(document.get("nodes"), list)


def _is_prompt(document: Workflow | Prompt) -> bool:
    return bool(document) and all(_is_api_node(node) for node in document.values())


def _is_api_node(node: Any) -> bool:
    return (
        isinstance(node, dict)
        and isinstance(node.get("class_type"), str)
        and isinstance(node.get("inputs"), dict)
    )
