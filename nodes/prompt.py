"""The prompt that runs, and which inputs of the running node are linked, and from where."""

from __future__ import annotations

from typing import Any

from ..offload_runtime.policy import is_link, linked_from


def prompt_graph(prompt: Any) -> dict[str, Any]:
    """Return node id → node of a `DYNPROMPT`."""
    return {name: prompt.get_node(name) for name in prompt.all_node_ids()}


def expanded_from(prompt: Any) -> dict[str, str]:
    """Return node id → the node that was expanded into it, for all such nodes of a `DYNPROMPT`."""
    found = {name: prompt.get_parent_node_id(name) for name in prompt.all_node_ids()}
    return {name: parent for name, parent in found.items() if parent is not None}


def links(prompt: Any, node_id: str | None, inputs: tuple[str, ...]) -> dict[str, str]:
    """Return input → the node that it is linked from, for people; nothing where ComfyUI gives no prompt.

    Args:
        prompt: the `DYNPROMPT` of the running node, or None.
        node_id: its `UNIQUE_ID`, or None.
        inputs: the inputs to look up.
    """
    if prompt is None or node_id is None:
        return {}
    given = prompt.get_node(node_id).get("inputs", {}).values()
    near = {node_id, *(str(value[0]) for value in given if is_link(value))}  # the others may be thousands
    graph = {name: prompt.get_node(name) for name in near if prompt.has_node(name)}
    return linked_from(graph, node_id, inputs)
