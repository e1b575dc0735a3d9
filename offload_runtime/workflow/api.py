"""Placing in an API prompt: what is queued, node id → node."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

from ..policy.links import is_link
from .names import LOAD_POLICY, LOADER, MODEL_FILE, OTHER_MODELS, PLACEMENTS_TYPE, PLACERS, handed_on
from .plan import Plan, plan
from .scope import Node, Output, Scope, Use, model_file
from .types import NodeTypes, Types

Prompt = dict[str, Any]

MARK = "layerwise_offload_placed"
"""In the `_meta` of a node: it was inserted here, and may be removed."""

_TITLES = {LOADER: "Layerwise Offload Loader", OTHER_MODELS: "Layerwise Offload Loader (Other Models)"}
_OURS = {placer: NodeTypes((*sockets.values(), PLACEMENTS_TYPE)) for placer, sockets in PLACERS.items()}


def planned(prompt: Prompt, types: Types, ends: frozenset[str] | None = None) -> Plan:
    """Return what a prompt needs.

    Args:
        prompt: node id → node.
        types: what the kinds of nodes hand out and take.
        ends: the nodes that a run is for, where not all of those that save are wanted.
    """
    nodes = tuple(_node(name, node, types, ends) for name, node in prompt.items())
    uses = tuple(_uses(prompt))
    return plan(Scope(None, nodes, uses))


def placed(prompt: Prompt, what: Plan, policy: str | None) -> Prompt:
    """Return the prompt with what it needs.

    Args:
        prompt: node id → node; it stays as it is.
        what: what it needs.
        policy: the text of a policy file for all Loaders; None where each has what is automatic.
    """
    made = deepcopy(prompt)
    free = (name for i in itertools.count(1) if (name := f"layerwise_offload_{i}") not in prompt)
    asked = None
    if policy is not None and what.loaders:
        name = next(free)
        asked = [name, 0]
        made[name] = _made(LOAD_POLICY, "Load Placement Policy", {"file": "auto", "text": policy})
    after = [what.after.node, what.after.slot] if what.after is not None else None
    for loader in what.loaders:
        name, outputs = next(free), handed_on(loader.kind)
        inputs: dict[str, Any] = {}
        for socket, source in loader.sources.items():
            first = source.uses[0]
            inputs[socket] = prompt[str(first.target)]["inputs"][first.name]
            for use in source.uses:
                made[str(use.target)]["inputs"][use.name] = [name, outputs.index(socket)]
        given = {"policy": asked, "placements": after}
        inputs |= {key: link for key, link in given.items() if link is not None}
        made[name] = _made(loader.kind, _TITLES[loader.kind], inputs)
        after = [name, outputs.index("placements")]
    return made


def removed(prompt: Prompt) -> tuple[Prompt, int]:
    """Return the prompt without what was inserted, and how many nodes that was."""
    ours = {name for name, node in prompt.items() if (node.get("_meta") or {}).get(MARK)}
    made = {name: deepcopy(node) for name, node in prompt.items() if name not in ours}
    for node in made.values():
        spliced = {key: _behind(prompt, ours, value) for key, value in node["inputs"].items()}
        node["inputs"] = {key: value for key, value in spliced.items() if value is not _NOTHING}
    return made, len(ours)


_NOTHING = object()


def _behind(prompt: Prompt, ours: set[str], value: Any) -> Any:
    """Return what a value is without our Loaders; nothing where a Loader was given nothing to hand on."""
    while is_link(value) and str(value[0]) in ours:
        loader = prompt[str(value[0])]
        names = handed_on(loader["class_type"])
        name = names[value[1]] if value[1] < len(names) else "placements"
        value = loader["inputs"].get(name, _NOTHING)
    return value


def _made(kind: str, title: str, inputs: dict[str, Any]) -> dict[str, Any]:
    return {"class_type": kind, "inputs": inputs, "_meta": {"title": title, MARK: True}}


def _node(name: str, node: Mapping[str, Any], types: Types, ends: frozenset[str] | None) -> Node:
    kind = node["class_type"]
    known = _OURS.get(kind) or types(kind)
    return Node(
        id=name,
        kind=kind,
        outputs=known.outputs if known else None,
        takes=known.takes if known else frozenset(),
        ends=(name in ends) if ends is not None else known.ends if known else None,
        file=model_file(node["inputs"], MODEL_FILE),
    )


def _uses(prompt: Prompt) -> Iterator[Use]:
    for name, node in prompt.items():
        for key, value in node["inputs"].items():
            if is_link(value) and str(value[0]) in prompt:
                ours = key in PLACERS.get(node["class_type"], ())
                yield Use(Output(str(value[0]), value[1]), name, key, ours)
