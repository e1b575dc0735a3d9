"""Unfold subgraphs: from a workflow with subgraphs to the flat one that does the same. Standard library only.

A file keeps each subgraph once, among its definitions, and a node of that type wherever it is used. The frontend
queues node 3 inside of such a node 8 as "8:3", and so do we. A value that a person sets on the subgraph's outside
(a promoted widget) wins over the one inside; it becomes a primitive that is wired to the widget inside.
"""

from __future__ import annotations

from typing import Any

Node = dict[str, Any]
Workflow = dict[str, Any]

# Ids of the two nodes inside of every subgraph that stand for its outside.
INPUT_NODE, OUTPUT_NODE = -10, -20
# A promoted widget's owner, where it is the subgraph itself.
SELF = "-1"
ACTIVE = 0


def unfolded(workflow: Workflow) -> Workflow:
    """The workflow without subgraphs. Nodes outside of them keep their ids; one without any is returned as it is."""
    kept = workflow.get("definitions", {}).get("subgraphs", [])
    definitions = {definition["id"]: definition for definition in kept}
    if not any(node["type"] in definitions for node in workflow["nodes"]):
        return workflow
    unfolding = _Unfolding(definitions)
    unfolding.enter(workflow, "")
    return {"nodes": unfolding.nodes(), "links": unfolding.links()}


class _Unfolding:
    """All nodes and links of all levels, under keys that contain the way there: "8:3" is node 3 inside of node 8."""

    def __init__(self, definitions: dict[str, Workflow]) -> None:
        self._definitions = definitions
        self._all: dict[str, Node] = {}
        self._opened: dict[str, Workflow] = {}  # the nodes that are replaced by what is inside
        self._sources: dict[str, tuple[str, int]] = {}  # link → node that it comes from, output slot
        self._results: dict[tuple[str, int], str] = {}  # subgraph node, output slot → link inside

    def enter(self, graph: Workflow, way: str) -> None:
        """Take in one level, and the levels below it."""
        for link in graph.get("links", []):
            number, origin, slot, target, place = _ends(link)
            self._sources[f"{way}{number}"] = (f"{way}{origin}", slot)
            if target == OUTPUT_NODE:
                self._results[way.removesuffix(":"), place] = f"{way}{number}"
        for node in graph["nodes"]:
            self._take(node, way)

    def nodes(self) -> list[Node]:
        return [node for key, node in self._all.items() if key not in self._opened]

    def links(self) -> list[list[Any]]:
        """Every link with the node that it really comes from, in the file's format as far as readers need it."""
        found = {key: self._source(key) for key in self._sources}
        return [[key, *source] for key, source in found.items() if source]

    def _take(self, node: Node, way: str) -> None:
        key = f"{way}{node['id']}"
        inputs = [
            {**entry, "link": None if entry.get("link") is None else f"{way}{entry['link']}"}
            for entry in node.get("inputs") or []
        ]
        self._all[key] = {**node, "id": key, "inputs": inputs}
        definition = self._definitions.get(node["type"])
        # A muted or bypassed subgraph does as a whole what such a node does.
        if definition and node.get("mode", ACTIVE) == ACTIVE:
            self._opened[key] = definition
            self.enter(definition, f"{key}:")
            values = node.get("widgets_values") or []
            for (owner, name), value in zip(_promoted(node, definition), values, strict=False):
                self._give(key if owner == SELF else f"{key}:{owner}", name, value)

    def _give(self, key: str, name: str, value: Any) -> None:
        """Wire a primitive with this value to an input, unless something is wired to it."""
        inputs = self._all[key]["inputs"]
        entry = next((entry for entry in inputs if entry["name"] == name), None)
        if entry is None:
            entry = {"name": name, "link": None}
            inputs.append(entry)
        if entry["link"] is None:
            primitive = f"{key}:{name}"
            self._all[primitive] = {"id": primitive, "type": "PrimitiveNode", "widgets_values": [value]}
            self._sources[primitive] = (primitive, 0)
            entry["link"] = primitive

    def _source(self, link: str | None) -> tuple[str, int] | None:
        """The node outside of which, or inside of which, a link begins; None where nothing is wired."""
        if link not in self._sources:
            return None
        origin, slot = self._sources[link]
        if origin in self._opened:
            return self._source(self._results.get((origin, slot)))
        outside, _, node = origin.rpartition(":")
        if node != str(INPUT_NODE):
            return origin, slot
        name = self._opened[outside]["inputs"][slot]["name"]
        entries = self._all[outside]["inputs"]
        return self._source(next((entry["link"] for entry in entries if entry["name"] == name), None))


def _promoted(node: Node, definition: Workflow) -> list[tuple[str, str]]:
    """Owner (a node's id inside, or SELF) and name of each promoted widget, in the order of the node's values."""
    listed = node.get("properties", {}).get("proxyWidgets")
    if listed:  # before frontend 1.49 or so
        return [(str(entry[0]), entry[1]) for entry in listed]
    widget_links = {
        entry["link"]
        for inner in definition["nodes"]
        for entry in inner.get("inputs") or []
        if entry.get("widget")
    }
    return [(SELF, entry["name"]) for entry in definition["inputs"] if widget_links & set(entry["linkIds"])]


def _ends(link: Any) -> tuple[Any, Any, int, Any, int]:
    """Id, origin, its slot, target and its slot, of a link in either format."""
    if isinstance(link, dict):
        return (
            link["id"],
            link["origin_id"],
            link["origin_slot"],
            link["target_id"],
            link["target_slot"],
        )
    return link[0], link[1], link[2], link[3], link[4]
