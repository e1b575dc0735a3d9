"""Which models a prompt uses, and which of them run in turn, read from the prompt and the types of its nodes.

A model comes from the node that makes it, and goes through nodes that hand on what they take: LoRAs, model patches,
our loaders. Only nodes count that an output node reaches: ComfyUI runs no others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from .links import is_link, upstream

ANY = "*"
"""The type of an output that may be anything."""

PLACEMENTS = "LAYERWISE_PLACEMENTS"
"""The type by which nodes that place know of each other."""

_DATA = frozenset(
    {PLACEMENTS, "LAYERWISE_POLICY", "LAYERWISE_REPORT"}
    | {"AUDIO", "BOOLEAN", "COMBO", "CONDITIONING", "FLOAT", "GUIDER", "IMAGE", "INT", "LATENT", "MASK"}
    | {"NOISE", "SAMPLER", "SIGMAS", "STRING", "VIDEO"}
)
"""Types of outputs that are no models."""


class NodeKind(NamedTuple):
    """What is known of the nodes of one class.

    Attributes:
        outputs: the types of its outputs.
        shows: whether it is an output node, for which a prompt is run.
    """

    outputs: tuple[str, ...] = ()
    shows: bool = False


class Source(NamedTuple):
    """An output by which a model comes into a prompt."""

    node: str
    output: int
    type: str


Output = tuple[str, int]


class PromptModels:
    """The models of one prompt.

    Args:
        nodes: node id → node, as in an API prompt.
        kinds: class → what is known of it; a class that is not there hands nothing on that is known.
        parents: a node that another one was expanded into → that one.
    """

    def __init__(
        self,
        nodes: Mapping[str, Mapping[str, Any]],
        kinds: Mapping[str, NodeKind],
        parents: Mapping[str, str] | None = None,
    ) -> None:
        self._nodes = nodes
        self._kinds = kinds
        self._parents = parents or {}
        self._children: dict[str, list[str]] = {}
        for child, parent in self._parents.items():
            self._children.setdefault(parent, []).append(child)
        self._found: dict[Output, tuple[Source, ...]] = {}
        self.running = self._running()

    def outputs(self, node: str) -> tuple[str, ...]:
        """Return the types of a node's outputs, as far as they are known."""
        return self._kind(node).outputs

    def makes_models(self, node: str) -> bool:
        """Tell whether any output of a node is a model."""
        return any(type_ not in _DATA for type_ in self.outputs(node))

    def hands_on(self, node: str) -> bool:
        """Tell whether a node hands a model on that it takes."""
        types = {self.type_of(link) for link in self._links(node)} - _DATA
        return bool(types & set(self.outputs(node)))

    def placing_before(self, node: str) -> frozenset[str]:
        """Return a node that places, and those whose placements it adds to."""
        found: dict[str, None] = {node: None}
        waiting = [node]
        for name in waiting:  # grows while it is walked
            for link in self._links(name):
                if self.type_of(link) == PLACEMENTS and link[0] not in found:
                    found[link[0]] = None
                    waiting.append(link[0])
        return frozenset(found)

    def used(self) -> list[Source]:
        """Return the models that running nodes use, each once. What only hands one on does not use it."""
        found = (source for _, _, sources in self._uses() for source in sources)
        return list(dict.fromkeys(found))

    def together(self) -> frozenset[Source]:
        """Return the diffusion models that run at the same time as another one: one node takes both.

        All others run in turn. Where a node picks or merges one of several, it counts as one.
        """
        found: set[Source] = set()
        by_node: dict[str, list[frozenset[Source]]] = {}
        for node, type_, sources in self._uses():
            if type_ == "MODEL":
                by_node.setdefault(node, []).append(frozenset(sources))
        for taken in by_node.values():
            for one in taken:
                if any(not one & other for other in taken):
                    found |= one
        return frozenset(found)

    def taken_by(self, node: str) -> frozenset[Source]:
        """Return the models that come in by the inputs of a node; of an expanded one, also what it was given."""
        found: set[Source] = set()
        waiting = [node]
        while waiting:
            name = waiting.pop()
            for link in self._links(name):
                if self.type_of(link) not in _DATA:
                    found.update(self.sources(link))
            if name in self._parents and self._holds_objects(name):
                waiting.append(self._parents[name])
        return frozenset(found)

    def sources(self, output: Output) -> tuple[Source, ...]:
        """Return where the model of an output comes from: several where a node picks one, or merges them."""
        if output not in self._found:
            self._found[output] = tuple(self._trace(output))
        return self._found[output]

    def type_of(self, output: Output) -> str:
        """Return the type of an output, `*` where it is not known."""
        types = self.outputs(output[0])
        return types[output[1]] if 0 <= output[1] < len(types) else ANY

    def _trace(self, output: Output) -> Iterator[Source]:
        wanted, waiting, seen = self.type_of(output), [output], {output}
        for at in waiting:  # grows while it is walked
            here = self.type_of(at)
            wanted = here if wanted == ANY else wanted
            before = [link for link in self._before(at[0], wanted) if link not in seen]
            handed_on = bool(before) or any(link in seen for link in self._before(at[0], wanted))
            waiting.extend(before)
            seen.update(before)
            if not handed_on and wanted not in (ANY, *_DATA):
                yield Source(at[0], at[1], wanted)

    def _before(self, node: str, wanted: str) -> list[Output]:
        """Return the outputs that a model of a type may come from that a node hands on."""
        links = self._links(node)
        for child in self._children.get(node, ()):
            links += [(child, i) for i, type_ in enumerate(self.outputs(child)) if type_ == wanted]
        return [link for link in links if self._fits(self.type_of(link), wanted)]

    @staticmethod
    def _fits(type_: str, wanted: str) -> bool:
        if wanted == ANY:
            return type_ not in _DATA
        return type_ in (wanted, ANY)

    def _uses(self) -> Iterator[tuple[str, str, tuple[Source, ...]]]:
        """Yield the uses of models: the node, the type that it takes, and where that comes from."""
        for node in sorted(self.running):
            hands_on = self.outputs(node)
            for link in self._links(node):
                type_ = self.type_of(link)
                if type_ in _DATA or type_ in hands_on or (type_ == ANY and ANY in hands_on):
                    continue
                sources = self.sources(link)
                if sources:
                    yield node, sources[0].type, sources

    def _links(self, node: str) -> list[Output]:
        inputs = self._nodes.get(node, {}).get("inputs", {})
        return [
            (str(value[0]), int(value[1]))
            for value in inputs.values()
            if is_link(value) and str(value[0]) in self._nodes
        ]

    def _holds_objects(self, node: str) -> bool:
        """Tell whether a node has an input that is no JSON: an object of the node that was expanded into it."""
        inputs = self._nodes.get(node, {}).get("inputs", {})
        plain = (str, int, float, list, tuple, dict, type(None))
        return any(not isinstance(value, plain) for value in inputs.values())

    def _kind(self, node: str) -> NodeKind:
        return self._kinds.get(str(self._nodes.get(node, {}).get("class_type")), NodeKind())

    def _running(self) -> frozenset[str]:
        """Return the nodes that output nodes reach; all of them where nobody knows an output node."""
        shown = [node for node in self._nodes if self._kind(node).shows]
        if not shown:
            return frozenset(self._nodes)
        found: set[str] = set()
        waiting = shown
        while waiting:
            reached = set(_reached(self._nodes, waiting)) - found
            found |= reached
            waiting = [child for node in reached for child in self._children.get(node, ())]
        return frozenset(found)


def _reached(nodes: Mapping[str, Any], starts: Iterable[str]) -> Iterator[str]:
    for start in starts:
        yield from upstream(nodes, [start, 0])
