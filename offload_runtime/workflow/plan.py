"""Which Loaders a graph needs, and in front of what: decided on what every format has in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from .names import NO_WEIGHTS, PACK_PREFIX, PASSES_ON, PLACEMENTS_TYPE, PLACERS, SOCKET_OF
from .scope import Node, NodeId, Output, Scope, Use

CAUSES = {
    "muted": "it is muted",
    "bypassed": "it is bypassed",
    "unused": "nothing that runs uses it",
    "type": "{types} cannot be placed yet",
    "unknown": "unknown node type {kind}",
}
"""Why something is not placed; the browser has the same keys."""


@dataclass(frozen=True)
class Source:
    """An output with weights that go through a Loader from now on.

    Attributes:
        output: whose weights they are.
        placer: which of our Loaders has a socket for them.
        socket: that socket.
        uses: all that will use the Loader's output instead.
    """

    output: Output
    placer: str
    socket: str
    uses: tuple[Use, ...]


@dataclass(frozen=True)
class Loader:
    """A Loader that is to be inserted.

    Attributes:
        kind: which of ours.
        sources: socket → what goes through it, in the order of its sockets.
    """

    kind: str
    sources: Mapping[str, Source]


@dataclass(frozen=True)
class LeftOut:
    """Something that loads weights and is not placed.

    Attributes:
        scope: the id of the subgraph that it is in; None for the outermost level.
        node: its id there.
        kind: its type.
        cause: the word for why, a key of `CAUSES`.
        types: the types of its outputs that have no socket yet.
    """

    scope: str | None
    node: NodeId
    kind: str
    cause: str
    types: str = ""

    @property
    def reason(self) -> str:
        """Why, for people."""
        return CAUSES[self.cause].format(kind=self.kind, types=self.types)


@dataclass(frozen=True)
class Plan:
    """What is to be inserted into one scope.

    Attributes:
        scope: the scope.
        loaders: the Loaders, the first of the chain first.
        after: the placements that the first Loader goes on from, of a Loader that is there.
        left_out: what is not placed.
    """

    scope: Scope
    loaders: tuple[Loader, ...]
    after: Output | None
    left_out: tuple[LeftOut, ...]


def plan(scope: Scope) -> Plan:
    """Decide what one scope needs."""
    running = scope.running()
    sources: list[Source] = []
    left_out: list[LeftOut] = []
    for node in scope.nodes:
        if node.kind.startswith(PACK_PREFIX) or node.folded or node.kind in PASSES_ON:
            continue
        found = list(_sources(scope, node))
        if found and node.off:
            left_out.append(LeftOut(scope.name, node.id, node.kind, node.off))
        elif any(use.target in running for one in found for use in one.uses):
            sources += found  # it is loaded whole, so what nothing uses yet costs nothing
        elif found and node.id not in running:
            left_out.append(LeftOut(scope.name, node.id, node.kind, "unused"))
        elif (why := _why_not(scope, node)) and (node.id in running or node.outputs is None):
            left_out.append(LeftOut(scope.name, node.id, node.kind, *why))
    return Plan(
        scope, _shared_out(scope, sources), _chain_end(scope, sources), _first_causes(scope, left_out)
    )


def _sources(scope: Scope, node: Node) -> Iterator[Source]:
    """Yield the outputs of a node that are the first to hold their weights, and are used past our Loaders."""
    given = {_type_of(scope, use.output) for use in scope.into(node.id)}
    for slot, kind in enumerate(node.outputs or ()):
        if kind not in SOCKET_OF or kind in node.takes or kind in given:
            continue
        output = Output(node.id, slot)
        uses = tuple(use for use in scope.uses if use.output == output and not use.ours)
        if uses:
            yield Source(output, *SOCKET_OF[kind], uses)


def _type_of(scope: Scope, output: Output) -> str | None:
    outputs = scope.node(output.node).outputs if scope.has(output.node) else None
    return outputs[output.slot] if outputs is not None and output.slot < len(outputs) else None


def _why_not(scope: Scope, node: Node) -> tuple[str, str] | None:
    """Return why a node that loads something is no source, and of what types; None for one that loads nothing."""
    if node.file is None or node.off:
        return None
    if node.outputs is None:
        return "unknown", ""
    given = {_type_of(scope, use.output) for use in scope.into(node.id)}
    others = [kind for kind in node.outputs if kind not in NO_WEIGHTS | node.takes | given]
    if set(others) & set(SOCKET_OF) or not others:
        return None  # it goes through a Loader, or comes from somewhere else
    return "type", " and ".join(dict.fromkeys(others))


def _shared_out(scope: Scope, sources: Sequence[Source]) -> tuple[Loader, ...]:
    """Share sources out to as few Loaders as possible, none of which needs what a later one hands on."""
    needs = {one.output.node: scope.before([one.output.node]) - {one.output.node} for one in sources}
    loaders: list[tuple[str, dict[str, Source]]] = []
    last: dict[NodeId, int] = {}  # node → the last Loader that one of its outputs goes through
    # The Loader comes first, and what is placed only if somebody asks for it follows.
    waiting = sorted(sources, key=lambda one: list(PLACERS).index(one.placer))
    while waiting:
        ready = [
            one
            for one in waiting
            if not any(other.output.node in needs[one.output.node] for other in waiting)
        ]
        for one in ready or waiting:  # a graph with a ring runs nowhere, so any order will do
            first = max((last[node] + 1 for node in needs[one.output.node] if node in last), default=0)
            fitting = (
                i for i, (kind, there) in enumerate(loaders) if kind == one.placer and one.socket not in there
            )
            at = next((i for i in fitting if i >= first), len(loaders))
            if at == len(loaders):
                loaders.append((one.placer, {}))
            loaders[at][1][one.socket] = one
            last[one.output.node] = max(at, last.get(one.output.node, 0))
        waiting = [one for one in waiting if one not in ready] if ready else []
    return tuple(
        Loader(kind, {socket: there[socket] for socket in PLACERS[kind] if socket in there})
        for kind, there in loaders
    )


def _chain_end(scope: Scope, sources: Sequence[Source]) -> Output | None:
    """Return the placements of the one Loader that is there, or the last in a row, unless it needs the new ones."""
    ends = []
    for node in scope.nodes:
        if (
            node.kind not in PLACERS
            or node.off
            or node.outputs is None
            or PLACEMENTS_TYPE not in node.outputs
        ):
            continue
        output = Output(node.id, node.outputs.index(PLACEMENTS_TYPE))
        followed = any(
            use.output == output and use.target is not None and scope.node(use.target).kind in PLACERS
            for use in scope.uses
        )
        if not followed:
            ends.append(output)
    if len(ends) != 1 or {one.output.node for one in sources} & scope.before([ends[0].node]):
        return None
    return ends[0]


def _first_causes(scope: Scope, left_out: Sequence[LeftOut]) -> tuple[LeftOut, ...]:
    """Leave out nodes of unknown types that only work on what others load, as a LoRA loader does."""
    known = {node.id for node in scope.nodes if node.outputs is not None}
    loads = {node.id for node in scope.nodes if set(node.outputs or ()) & set(SOCKET_OF)}
    first = loads | {one.node for one in left_out}
    return tuple(
        one for one in left_out if one.node in known or not (scope.before([one.node]) - {one.node}) & first
    )
