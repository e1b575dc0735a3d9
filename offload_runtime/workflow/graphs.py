"""A workflow file of the interface, with all its levels: read as scopes, whatever the form of its links."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .names import MODEL_FILE, PASSES_ON, PLACERS
from .scope import Node, NodeId, Output, Scope, Use, model_file
from .types import Types, alternatives

Json = dict[str, Any]

OFF = {2: "muted", 4: "bypassed"}
INSIDE, OUTSIDE = -10, -20
"""Ids of the nodes inside of a subgraph that stand for its inputs and outputs."""


class Link(NamedTuple):
    """A link of either form: a list in the outermost level, an object inside of subgraphs."""

    id: Any
    origin: Any
    slot: int
    target: Any
    place: int


def link_of(link: Any) -> Link:
    """Read a link."""
    if isinstance(link, dict):
        return Link(
            link["id"], link["origin_id"], link["origin_slot"], link["target_id"], link["target_slot"]
        )
    return Link(*link[:5])


def move(link: Any, origin: Any, slot: int) -> None:
    """Let a link begin somewhere else."""
    if isinstance(link, dict):
        link["origin_id"], link["origin_slot"] = origin, slot
    else:
        link[1], link[2] = origin, slot


def new_link(like: list[Any], link: Link, kind: str) -> Any:
    """Return a link in the form that a level keeps them in."""
    if like and isinstance(like[0], dict):
        names = ("id", "origin_id", "origin_slot", "target_id", "target_slot")
        return {**dict(zip(names, link, strict=True)), "type": kind}
    return [*link, kind]


@dataclass
class Level:
    """The outermost level of a workflow, or the inside of a subgraph.

    Attributes:
        name: the id of the subgraph; None for the outermost level.
        data: its part of the file.
        nodes: node id → node.
        links: the links that are really there, by their numbers.
    """

    name: str | None
    data: Json
    nodes: dict[NodeId, Json] = field(init=False)
    links: dict[NodeId, Link] = field(init=False)

    def __post_init__(self) -> None:
        self.nodes = {node["id"]: node for node in self.data["nodes"]}
        if not all(isinstance(node["type"], str) for node in self.nodes.values()):
            raise TypeError("a node's type is a word")
        every = (link_of(link) for link in self.data.get("links") or [])
        self.links = {link.id: link for link in every if self._holds(link)}

    def _holds(self, link: Link) -> bool:
        """Tell whether a link's end knows of it; files keep some that are long gone."""
        if link.target == OUTSIDE:
            return True
        inputs = self.nodes.get(link.target, {}).get("inputs") or []
        return link.place < len(inputs) and inputs[link.place].get("link") == link.id

    def leaving(self, node: NodeId, slot: int) -> Iterator[Link]:
        """Yield the links that begin at an output."""
        return (link for link in self.links.values() if (link.origin, link.slot) == (node, slot))


class Graphs:
    """All levels of a workflow."""

    def __init__(self, workflow: Json) -> None:
        kept = (workflow.get("definitions") or {}).get("subgraphs") or []
        self.levels = [Level(None, workflow), *(Level(one["id"], one) for one in kept)]
        self._by_name = {level.name: level for level in self.levels}

    def level(self, name: str | None) -> Level:
        """Return the level of a subgraph's id; None is the outermost."""
        return self._by_name[name]

    def folded(self, node: Json) -> bool:
        """Tell whether a node stands for a subgraph."""
        return node["type"] in self._by_name

    def scopes(self, types: Types) -> Iterator[Scope]:
        """Yield what placing sees of each level."""
        for level in self.levels:
            nodes = tuple(self._node(node, types) for node in level.data["nodes"])
            links = [link for link in level.links.values() if link.origin in level.nodes]
            uses = (
                Use(
                    Output(link.origin, link.slot),
                    None if link.target == OUTSIDE else link.target,
                    link.id,
                    self._ours(level, link, frozenset()),
                )
                for link in links
            )
            yield Scope(level.name, nodes, tuple(uses))

    def _node(self, node: Json, types: Types) -> Node:
        kind, folded = node["type"], self.folded(node)
        known = None if folded else types(kind)
        return Node(
            id=node["id"],
            kind=kind,
            outputs=tuple(str(one.get("type")) for one in node.get("outputs") or []),
            takes=alternatives(one.get("type") for one in node.get("inputs") or []),
            off=OFF.get(node.get("mode", 0)),
            ends=True if folded else known.ends if known else None,
            folded=folded,
            file=model_file(node.get("widgets_values") or [], MODEL_FILE),
        )

    def _ours(self, level: Level, link: Link, seen: frozenset[tuple[str | None, Any]]) -> bool:
        """Tell whether a link ends in our Loaders only, through reroutes and the edges of subgraphs."""
        if (level.name, link.id) in seen:
            return False
        seen |= {(level.name, link.id)}
        further: list[tuple[Level, Link]] = []
        target = level.nodes.get(link.target)
        if link.target == OUTSIDE:
            for outer in self.levels:
                for node in outer.data["nodes"]:
                    if node["type"] == level.name:
                        further += [(outer, one) for one in outer.leaving(node["id"], link.place)]
        elif target is None:
            return False
        elif target["type"] in PLACERS:
            return target["inputs"][link.place].get("name") in PLACERS[target["type"]]
        elif target["type"] in PASSES_ON:
            further = [(level, one) for one in level.leaving(target["id"], 0)]
        elif self.folded(target):
            inner = self.level(target["type"])
            further = [(inner, one) for one in inner.leaving(INSIDE, self._entry(inner, target, link.place))]
        return bool(further) and all(self._ours(where, one, seen) for where, one in further)

    def _entry(self, inner: Level, node: Json, place: int) -> int:
        """Return which of a subgraph's inputs a node's input is; a node may have fewer, or others first."""
        names = [one.get("name") for one in inner.data.get("inputs") or []]
        name = node["inputs"][place].get("name")
        return names.index(name) if name in names else -1
