"""Placing in a workflow file of the interface, inside of its subgraphs too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from typing import Any

from .graphs import Graphs, Json, Level, Link, link_of, move, new_link
from .layout import LOADER_SIZE, OTHER_MODELS_SIZE, POLICY_SIZE, Box, box_of, free_place
from .names import LOAD_POLICY, LOADER, OTHER_MODELS, PLACEMENTS_TYPE, PLACERS, POLICY_TYPE, handed_on
from .plan import Loader, Plan, plan
from .scope import Output
from .types import Types

MARK = "layerwise_offload_placed"
"""In the properties of a node: it was inserted, with the links of others as they were before."""

_SIZES = {LOADER: LOADER_SIZE, OTHER_MODELS: OTHER_MODELS_SIZE}
_COLOUR = {"color": "#323", "bgcolor": "#535"}


def planned(workflow: Json, types: Types) -> list[Plan]:
    """Return what each level of a workflow needs, the outermost first."""
    return [plan(scope) for scope in Graphs(workflow).scopes(types)]


def placed(workflow: Json, plans: Iterable[Plan], policy: str | None) -> Json:
    """Return the workflow with what it needs; the workflow itself stays as it is.

    Args:
        workflow: the file.
        plans: what its levels need.
        policy: the text of a policy file for all Loaders; None where each has what is automatic.
    """
    made = deepcopy(workflow)
    graphs = Graphs(made)
    numbers = _Numbers(graphs)
    for one in plans:
        if one.loaders:
            _Inserting(graphs.level(one.scope.name), numbers).insert(one, policy)
    numbers.keep()
    return made


def removed(workflow: Json) -> tuple[Json, int]:
    """Return the workflow without what was inserted, and how many nodes that was."""
    made = deepcopy(workflow)
    count = 0
    for level in Graphs(made).levels:
        ours = [node for node in level.data["nodes"] if MARK in (node.get("properties") or {})]
        for node in reversed(ours):
            if node["type"] in PLACERS:
                _splice(level, node)
                count += 1
        for node in ours:
            if node["type"] not in PLACERS and not any(out.get("links") for out in node.get("outputs") or []):
                _drop(level, node)
                count += 1
    return made, count


class _Numbers:
    """New ids for nodes and links, that no level has."""

    def __init__(self, graphs: Graphs) -> None:
        self._levels = [level.data for level in graphs.levels]
        self.node = 1 + max(
            [0, *_numbers(one["id"] for level in self._levels for one in level["nodes"]), *self._said("Node")]
        )
        links = (link_of(one).id for level in self._levels for one in level.get("links") or [])
        self.link = 1 + max([0, *_numbers(links), *self._said("Link")])

    def _said(self, what: str) -> list[int]:
        said = [level.get(f"last_{what.lower()}_id") for level in self._levels]
        return _numbers([*said, *((level.get("state") or {}).get(f"last{what}Id") for level in self._levels)])

    def next_node(self) -> int:
        self.node += 1
        return self.node - 1

    def next_link(self) -> int:
        self.link += 1
        return self.link - 1

    def keep(self) -> None:
        """Write down how far the numbers went, wherever a level keeps that."""
        for level in self._levels:
            for what, number in (("Node", self.node - 1), ("Link", self.link - 1)):
                for where, key in (
                    (level, f"last_{what.lower()}_id"),
                    (level.get("state") or {}, f"last{what}Id"),
                ):
                    if isinstance(where.get(key), int):
                        where[key] = max(where[key], number)


class _Inserting:
    """Puts nodes into one level."""

    def __init__(self, level: Level, numbers: _Numbers) -> None:
        self._level, self._numbers = level, numbers
        self._raw = {link_of(link).id: link for link in level.data["links"]}
        self._boxes = [box_of(node) for node in level.data["nodes"]]

    def insert(self, what: Plan, policy: str | None) -> None:
        asked = None
        if policy is not None:
            ends = ([("base", POLICY_TYPE)], [("policy", POLICY_TYPE)])
            asked = self._add(LOAD_POLICY, self._near(what.loaders[0]), POLICY_SIZE, *ends, before=True)
            asked["widgets_values"] = ["auto", policy]
        after = what.after
        for one in what.loaders:
            loader = self._loader(one)
            if asked is not None:
                self._connect(Output(asked["id"], 0), loader, "policy")
            if after is not None:
                if after == what.after:
                    loader["properties"][MARK]["before"].append([*after, self._links(after)])
                self._connect(after, loader, "placements")
            after = Output(loader["id"], handed_on(one.kind).index("placements"))

    def _loader(self, one: Loader) -> Json:
        """Add a Loader in front of all that uses its sources."""
        placed, chained = list(PLACERS[one.kind].items()), [("placements", PLACEMENTS_TYPE)]
        inputs = [*placed, ("policy", POLICY_TYPE), *chained]
        outputs = [*((socket.upper(), kind) for socket, kind in placed), *chained]
        loader = self._add(one.kind, self._near(one), _SIZES[one.kind], inputs, outputs)
        for socket, source in one.sources.items():
            links = self._links(source.output)
            loader["properties"][MARK]["before"].append([*source.output, links])
            moved = [use.name for use in source.uses]
            out = handed_on(one.kind).index(socket)
            for name in moved:
                move(self._raw[name], loader["id"], out)
            loader["outputs"][out]["links"] = moved
            self._output(source.output)["links"] = [name for name in links or [] if name not in moved]
            self._connect(source.output, loader, socket)
        return loader

    def _near(self, one: Loader) -> Box:
        return box_of(self._level.nodes[next(iter(one.sources.values())).output.node])

    def _add(
        self,
        kind: str,
        near: Box,
        size: tuple[float, float],
        inputs: list[tuple[str, str]],
        outputs: list[tuple[str, str]],
        *,
        before: bool = False,
    ) -> Json:
        nodes = self._level.data["nodes"]
        node = {
            "id": self._numbers.next_node(),
            "type": kind,
            "pos": list(free_place(self._boxes, near, size, before=before)),
            "size": list(size),
            "flags": {},
            "order": 1 + max([0, *_numbers(node.get("order") for node in nodes)]),
            "mode": 0,
            "inputs": [{"name": name, "shape": 7, "type": of, "link": None} for name, of in inputs],
            "outputs": [{"name": name, "type": of, "links": None} for name, of in outputs],
            "properties": {"Node name for S&R": kind, MARK: {"before": []}},
            **_COLOUR,
        }
        nodes.append(node)
        self._level.nodes[node["id"]] = node
        self._boxes.append(box_of(node))
        return node

    def _output(self, output: Output) -> Json:
        found: Json = self._level.nodes[output.node]["outputs"][output.slot]
        return found

    def _links(self, output: Output) -> list[Any] | None:
        links = self._output(output).get("links")
        return None if links is None else list(links)

    def _connect(self, output: Output, target: Json, name: str) -> None:
        place = [one["name"] for one in target["inputs"]].index(name)
        link = Link(self._numbers.next_link(), *output, target["id"], place)
        links = self._level.data["links"]
        links.append(new_link(links, link, target["inputs"][place]["type"]))
        target["inputs"][place]["link"] = link.id
        out = self._output(output)
        out["links"] = [*(out.get("links") or []), link.id]


def _splice(level: Level, loader: Json) -> None:
    """Take a Loader out, and let what came in go to those that used what it handed on."""
    raw = {link_of(link).id: link for link in level.data["links"]}
    mark = loader["properties"][MARK]
    before = (
        {(node, slot): links for node, slot, links in mark["before"]} if isinstance(mark, Mapping) else {}
    )
    given = {one["name"]: one.get("link") for one in loader["inputs"]}
    gone: set[Any] = set()
    for name, output in zip(handed_on(loader["type"]), loader["outputs"], strict=False):
        source = link_of(raw[given[name]]) if given.get(name) in raw else None
        moved = [one for one in output.get("links") or [] if one in raw]
        if source is None or (name == "placements" and source.origin not in level.nodes):
            gone |= set(moved)
            continue
        for one in moved:
            move(raw[one], source.origin, source.slot)
        _hand_back(level, source, moved, before)
        given.pop(name)
        gone.add(source.id)
    for rest in given.values():
        if rest in raw:
            _hand_back(level, link_of(raw[rest]), [], before)
            gone.add(rest)
    _forget(level, gone)
    level.data["nodes"].remove(loader)
    del level.nodes[loader["id"]]


def _hand_back(level: Level, source: Link, moved: list[Any], before: Mapping[tuple[Any, Any], Any]) -> None:
    """Put links in the place of the one that led to a Loader; in the order that they once had, if it is those."""
    node = level.nodes.get(source.origin)
    if node is None:
        return  # it came from the subgraph's outside, whose list of links is another
    output = node["outputs"][source.slot]
    links = [one for link in output.get("links") or [] for one in (moved if link == source.id else [link])]
    once = before.get((source.origin, source.slot), [])
    output["links"] = once if set(once or []) == set(links) else links


def _forget(level: Level, gone: set[Any]) -> None:
    """Take links out of a level, and out of the inputs that they led to."""
    level.data["links"] = [link for link in level.data["links"] if link_of(link).id not in gone]
    for node in level.nodes.values():
        for one in node.get("inputs") or []:
            if one.get("link") in gone:
                one["link"] = None
    for out in level.data.get("outputs") or [] if level.name is not None else []:
        if gone & set(out.get("linkIds") or []):
            out["linkIds"] = [one for one in out["linkIds"] if one not in gone]


def _drop(level: Level, node: Json) -> None:
    """Take a policy node out that nothing uses."""
    gone = {one["link"] for one in node.get("inputs") or [] if one.get("link") is not None}
    for other in level.nodes.values():
        for out in other.get("outputs") or []:
            if gone & set(out.get("links") or []):
                out["links"] = [one for one in out["links"] if one not in gone]
    _forget(level, gone)
    level.data["nodes"].remove(node)
    del level.nodes[node["id"]]


def _numbers(values: Iterable[Any]) -> list[int]:
    """Return those of some ids that are numbers, also where they are kept as words."""
    return list(_as_numbers(values))


def _as_numbers(values: Iterable[Any]) -> Iterator[int]:
    for value in values:
        if isinstance(value, int):
            yield value
        elif isinstance(value, str) and value.isdecimal():
            yield int(value)
