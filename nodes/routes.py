"""What the browser asks the server: to read a policy file, and to write one.

Both routes only convert; nothing is stored. They use the reader and the writer of the nodes, so that a file means
the same wherever it is dropped, and a mistake in it is the same sentence.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from ..offload_runtime.errors import PolicyError
from ..offload_runtime.policy import Policy, Source, SourceKind, as_chain
from ..offload_runtime.policy.files import dump_policy, parse_policy
from . import placement_policy, policy_files, set_placement
from .running_server import running_server

PREFIX = "/layerwise_offload/policy"

_READERS: Mapping[str, Callable[[str, Mapping[str, Any]], Policy]] = {
    "LayerwiseOffload_PlacementPolicy": placement_policy.policy_of,
    "LayerwiseOffload_SetPlacement": set_placement.policy_of,
    "LayerwiseOffload_LoadPolicy": policy_files.policy_of,
}


def add_routes() -> None:
    """Add the routes to the running server; where there is none, nobody can ask."""
    running = running_server()
    if running is None:
        return
    running.routes.post(f"{PREFIX}/parse")(_route(_parse))
    running.routes.post(f"{PREFIX}/dump")(_route(_dump))


def parsed(data: bytes, name: str) -> dict[str, Any]:
    """Return the content of a policy file as the widget values of a chain of nodes.

    Raises:
        PolicyError: the content is not a policy.
    """
    policy = parse_policy(data, Source(SourceKind.FILE, name[:100]))
    chain = as_chain(policy, placement_policy.SELECTORS.values())
    widgets = {selector: widget for widget, selector in placement_policy.SELECTORS.items()}
    placements = {widgets[selector]: placement for selector, placement in chain.placements.items()}
    return {"policy": {**chain.workflow, **placements}, "overrides": list(chain.overrides)}


def dumped(data: bytes) -> dict[str, Any]:
    """Return the YAML text of a chain of nodes, each given as `class_type`, `id` and `inputs`, the first one first.

    Raises:
        PolicyError: a value cannot be understood.
        ValueError: it is no such chain.
    """
    try:
        nodes = [
            (_READERS[node["class_type"]], str(node["id"])[:40], dict(node["inputs"]))
            for node in json.loads(data)["nodes"]
        ]
    except (KeyError, TypeError) as error:
        raise ValueError("a chain of policy nodes is a list of class_type, id and inputs") from error
    return {
        "text": dump_policy(Policy().extended(*(read(node_id, inputs) for read, node_id, inputs in nodes)))
    }


def _parse(request: Any, data: bytes) -> dict[str, Any]:
    return parsed(data, request.query.get("name", "policy file"))


def _dump(request: Any, data: bytes) -> dict[str, Any]:
    return dumped(data)


def _route(answer: Callable[[Any, bytes], dict[str, Any]]) -> Callable[[Any], Awaitable[Any]]:
    async def handler(request: Any) -> Any:
        from aiohttp import web

        data = await request.read()
        try:
            return web.json_response(answer(request, data))
        except PolicyError as error:
            # A person's mistake is an answer; a failed request would be an error of the page in the browser's log.
            mistake = {"message": str(error), "line": error.line, "column": error.column}
            return web.json_response({"error": mistake})
        except ValueError as error:
            raise web.HTTPBadRequest(text=str(error)) from error

    return handler
