"""Which nodes of a prompt are going to use a model, read from the prompt that ComfyUI runs."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Collection, Mapping
from typing import Any

from .links import is_link

_runs = itertools.count()


class PromptNodes:
    """The nodes of one prompt, and what each depends on.

    Args:
        nodes: node id → node, as in an API prompt.
    """

    def __init__(self, nodes: Mapping[str, Any]) -> None:
        self._nodes = nodes
        self._digests: dict[str, str] = {}

    def kind(self, node_id: str) -> str | None:
        """Return the class of a node, or None for one that is not there."""
        node = self._nodes.get(node_id)
        return node.get("class_type") if isinstance(node, Mapping) else None

    def users(self, kinds: Collection[str], sources: Collection[str]) -> list[str]:
        """Return the ids of the nodes of some classes that are fed by one of the sources; of all, if none is there."""
        there = [source for source in sources if self.kind(source)]
        nodes = (node for node in self._nodes if self.kind(node) in kinds)
        return [n for n in nodes if not there or any(self._comes_from(n, source) for source in there)]

    def _comes_from(self, node_id: str, source: str) -> bool:
        """Tell whether a node is fed by a loader, and not only through another loader of the same class."""
        waiting, seen, loader = [node_id], {node_id}, self.kind(source)
        while waiting:
            for other in self._before(waiting.pop()):
                if other == source:
                    return True
                if other not in seen and self.kind(other) != loader:
                    seen.add(other)
                    waiting.append(other)
        return False

    def digest(self, node_id: str) -> str:
        """Return what tells whether a node's result is still the same: its class, its inputs, and all before it."""
        waiting, path = [node_id], set()
        while waiting:
            top = waiting[-1]
            before = [n for n in self._before(top) if n not in self._digests and n not in path]
            path.add(top)
            if before and top not in self._digests:
                waiting.extend(before)
                continue
            waiting.pop()
            if top not in self._digests:
                self._digests[top] = self._digest(top)
        return self._digests[node_id]

    def _digest(self, node_id: str) -> str:
        node = self._nodes.get(node_id)
        if not isinstance(node, Mapping):
            return node_id
        inputs = {
            name: [self._digests.get(str(value[0]), ""), value[1]] if is_link(value) else value
            for name, value in sorted(node.get("inputs", {}).items())
        }
        changed = json.dumps(node.get("is_changed"), default=repr, skipkeys=True)
        if "NaN" in changed:  # with which a class says that it has to run every time
            changed = str(next(_runs))
        text = json.dumps([node.get("class_type"), inputs, changed], default=repr, skipkeys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def _before(self, node_id: str) -> list[str]:
        node = self._nodes.get(node_id)
        values = node.get("inputs", {}).values() if isinstance(node, Mapping) else ()
        return [str(value[0]) for value in values if is_link(value) and str(value[0]) in self._nodes]
