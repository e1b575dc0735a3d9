"""What placing sees of a graph, whichever format it is kept in: nodes, and which outputs are used where."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

NodeId = Hashable


class Output(NamedTuple):
    """One output of a node."""

    node: NodeId
    slot: int


@dataclass(frozen=True)
class Use:
    """An output that goes somewhere.

    Attributes:
        output: what is used.
        target: the node that uses it; None for the outside of a subgraph.
        name: which use it is: the number of a link, or the name of the target's input.
        ours: it ends in a Loader of this pack, and nowhere else.
    """

    output: Output
    target: NodeId | None
    name: Any
    ours: bool = False


@dataclass(frozen=True)
class Node:
    """A node.

    Attributes:
        id: its id in its graph.
        kind: its type.
        outputs: the types of its outputs, in order; None where nobody knows them.
        takes: the types of its inputs.
        off: the word for why it does not run; None for one that runs.
        ends: whether it runs for its own sake; None where nobody said.
        folded: it stands for a subgraph, whose loaders are placed inside.
        file: a model file that it names; None for one that names none.
    """

    id: NodeId
    kind: str
    outputs: tuple[str, ...] | None
    takes: frozenset[str] = frozenset()
    off: str | None = None
    ends: bool | None = None
    folded: bool = False
    file: str | None = None


@dataclass(frozen=True)
class Scope:
    """One level of a workflow: the outermost, or the inside of a subgraph.

    Attributes:
        name: the id of the subgraph; None for the outermost level.
        nodes: in the order in which they are kept.
        uses: in the order in which they are kept.
    """

    name: str | None
    nodes: tuple[Node, ...]
    uses: tuple[Use, ...]
    _into: dict[NodeId, list[Use]] = field(default_factory=dict, init=False, repr=False)
    _by_id: dict[NodeId, Node] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        self._by_id.update((node.id, node) for node in self.nodes)
        for use in self.uses:
            if use.target is not None:
                self._into.setdefault(use.target, []).append(use)

    def has(self, node: NodeId) -> bool:
        """Tell whether it has this node."""
        return node in self._by_id

    def node(self, node: NodeId) -> Node:
        """Return the node of an id."""
        return self._by_id[node]

    def into(self, node: NodeId) -> list[Use]:
        """Return what a node uses."""
        return self._into.get(node, [])

    def before(self, nodes: Iterable[NodeId]) -> set[NodeId]:
        """Return what some nodes need, with the nodes themselves."""
        waiting, found = list(nodes), set[NodeId]()
        while waiting:
            node = waiting.pop()
            if node not in found:
                found.add(node)
                waiting += [use.output.node for use in self.into(node)]
        return found

    def running(self) -> set[NodeId | None]:
        """Return the nodes that a run needs, and None: the outside uses what it is given."""
        off = {node.id for node in self.nodes if node.off == "muted"}
        used = {use.output.node for use in self.uses}
        ends = [node.id for node in self.nodes if (node.id not in used if node.ends is None else node.ends)]
        ends += [use.output.node for use in self.uses if use.target is None]
        waiting, found = [node for node in ends if node not in off], set[NodeId | None]({None})
        while waiting:
            node = waiting.pop()
            if node not in found:
                found.add(node)
                waiting += [use.output.node for use in self.into(node) if use.output.node not in off]
        return found


def model_file(values: Any, endings: tuple[str, ...]) -> str | None:
    """Return the first of some widget values that is the name of a model file."""
    if isinstance(values, Mapping):
        values = values.values()
    named = (one for one in values if isinstance(one, str) and one.lower().endswith(endings))
    return next(named, None)
