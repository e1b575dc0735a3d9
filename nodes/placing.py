"""What the open workflow needs to be placed, for the browser, which inserts it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..offload_runtime.errors import WorkflowError
from ..offload_runtime.policy.sockets import OTHERS, SOCKETS

if TYPE_CHECKING:
    from ..offload_runtime.workflow import LeftOut, NodeTypes, Plan


def class_types(kind: str) -> NodeTypes | None:
    """Return what a kind of node of this ComfyUI hands out and takes."""
    from ..offload_runtime.workflow import NodeTypes, alternatives  # no start pays for it

    node = _class(kind)
    if node is None:
        return None
    outputs = _outputs(node)
    # Asking for inputs looks into folders, and only what hands out a model needs it.
    groups = node.INPUT_TYPES() if set(outputs) & {*SOCKETS.values(), *OTHERS.values()} else {}
    inputs = [config[0] for name in ("required", "optional") for config in (groups.get(name) or {}).values()]
    return NodeTypes(outputs, alternatives(inputs), _ends(node))


def needed(data: bytes) -> dict[str, Any]:
    """Return what each level of a workflow, as the interface keeps it, needs; and what is not placed, and why.

    Raises:
        ValueError: it is no such workflow.
    """
    from ..offload_runtime.workflow import plan_workflow

    try:
        plans = plan_workflow(json.loads(data)["workflow"], _ends_only)
    except (KeyError, RecursionError, TypeError, ValueError, WorkflowError) as error:
        raise ValueError(f"“workflow” is a workflow as ComfyUI saves it: {error}") from error
    return {
        "levels": [_level(plan) for plan in plans if plan.loaders],
        "left_out": [_left(one) for plan in plans for one in plan.left_out],
    }


def _level(plan: Plan) -> dict[str, Any]:
    return {
        "graph": plan.scope.name,
        "after": None if plan.after is None else plan.after._asdict(),
        "loaders": [
            {
                "kind": loader.kind,
                "sources": {
                    socket: {**source.output._asdict(), "links": [use.name for use in source.uses]}
                    for socket, source in loader.sources.items()
                },
            }
            for loader in plan.loaders
        ],
    }


def _left(one: LeftOut) -> dict[str, Any]:
    return {"graph": one.scope, "id": one.node, "kind": one.kind, "cause": one.cause, "types": one.types}


def _ends_only(kind: str) -> NodeTypes | None:
    """A workflow of the interface has the types; asking a node for its inputs would look into folders."""
    from ..offload_runtime.workflow import NodeTypes

    node = _class(kind)
    return None if node is None else NodeTypes(_outputs(node), ends=_ends(node))


def _class(kind: str) -> Any:
    import nodes  # ComfyUI's, whose folder comes first

    mappings: Mapping[str, Any] = nodes.NODE_CLASS_MAPPINGS
    return mappings.get(kind)


def _outputs(node: Any) -> tuple[str, ...]:
    return tuple(kind if isinstance(kind, str) else "COMBO" for kind in getattr(node, "RETURN_TYPES", ()))


def _ends(node: Any) -> bool:
    return bool(getattr(node, "OUTPUT_NODE", False))
