"""Where a widget's value came from, read from the prompt that ComfyUI runs.

A prompt holds a literal for a value that was typed (a primitive node is inlined as one), and
`[node id, output]` for a link. Ids of nodes inside subgraphs look like `12:5`; muted and bypassed nodes are
not in the prompt at all. The value of a link is only known when the node runs; this tells where it came from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def linked_from(prompt: Mapping[str, Any], node_id: str | None, inputs: tuple[str, ...]) -> dict[str, str]:
    """Return, for those inputs of a node that are linked, what a person calls the node on the other end.

    Args:
        prompt: node id → node, as in an API prompt.
        node_id: the node that has the inputs.
        inputs: the inputs to look up.
    """
    node = prompt.get(node_id or "")
    given = node.get("inputs", {}) if isinstance(node, Mapping) else {}
    return {name: _call(prompt, given[name][0]) for name in inputs if is_link(given.get(name))}


def upstream(prompt: Mapping[str, Any], link: Any) -> Iterator[str]:
    """Yield the ids of the nodes that the value of a link depends on, each once, the nearest first.

    Args:
        prompt: node id → node, as in an API prompt.
        link: the value of an input; nothing comes before one that is no link.
    """
    waiting, seen = [link], set()
    for value in waiting:  # grows while it is walked
        node_id = str(value[0]) if is_link(value) else None
        if node_id is None or node_id in seen or node_id not in prompt:
            continue
        seen.add(node_id)
        yield node_id
        waiting.extend(prompt[node_id].get("inputs", {}).values())


def is_link(value: Any) -> bool:
    """Tell a link from a value that was typed."""
    return isinstance(value, (list, tuple)) and len(value) == 2 and isinstance(value[1], int)


def _call(prompt: Mapping[str, Any], node_id: Any) -> str:
    node = prompt.get(str(node_id))
    kind = node.get("class_type") if isinstance(node, Mapping) else None
    return f"node {node_id} ({kind})" if kind else f"node {node_id}"
