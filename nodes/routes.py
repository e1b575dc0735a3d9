"""What the browser asks the server: to read a policy file, to write one, and what a workflow needs to be placed.

The routes only answer; nothing is stored. They use the reader and the writer of the nodes, so that a file means
the same wherever it is dropped, and a mistake in it is the same sentence.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from ..offload_runtime.errors import PolicyError
from ..offload_runtime.policy import Policy, Source, SourceKind, as_chain
from ..offload_runtime.policy.files import dump_policy, parse_policy
from . import placement_policy, policy_files, set_placement
from .placing import needed
from .running_server import running_server

PREFIX = "/layerwise_offload"

MAX_BYTES = 4 * 1024**2
"""Bytes of a chain; a long one has a few thousand."""

LOAD = "LayerwiseOffload_LoadPolicy"

_PLAIN = (str, bool, int, float, type(None))
_Reader = Callable[[str, Mapping[str, Any]], Policy]
_READERS: Mapping[str, _Reader] = {
    "LayerwiseOffload_PlacementPolicy": placement_policy.policy_of,
    "LayerwiseOffload_SetPlacement": set_placement.policy_of,
    LOAD: policy_files.policy_of,
}


def add_routes() -> None:
    """Add the routes to the running server; where there is none, nobody can ask."""
    running = running_server()
    if running is None:
        return
    running.routes.post(f"{PREFIX}/policy/parse")(_route(_parse))
    running.routes.post(f"{PREFIX}/policy/dump")(_route(_dump))
    running.routes.post(f"{PREFIX}/place")(_route(_needed))


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
        PolicyError: a value cannot be understood, or it is longer than any chain.
        ValueError: it is no such chain.
    """
    if len(data) > MAX_BYTES:
        raise PolicyError(
            f"a chain of policy nodes has at most {MAX_BYTES} bytes, and this one has {len(data)} bytes"
        )
    chain = _chain(data)
    return {
        "text": dump_policy(Policy().extended(*(read(node_id, inputs) for read, node_id, inputs in chain)))
    }


def _chain(data: bytes) -> list[tuple[_Reader, str, dict[str, Any]]]:
    try:
        chain = []
        for node in json.loads(data)["nodes"]:
            kind, node_id, inputs = node["class_type"], node["id"], node["inputs"]
            texts = ("file", "text") if kind == LOAD else ()
            for name, value in inputs.items():
                if not isinstance(value, str if name in texts and value is not None else _PLAIN):
                    raise TypeError(name)
            if not isinstance(node_id, (str, int)):
                raise TypeError("id")
            chain.append((_READERS[kind], str(node_id)[:40], inputs))
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(
            "a chain of policy nodes is JSON: a list “nodes” of class_type, id and inputs, whose values are texts"
        ) from error
    return chain


def _parse(request: Any, data: bytes) -> dict[str, Any]:
    return parsed(data, request.query.get("name", "policy file"))


def _dump(request: Any, data: bytes) -> dict[str, Any]:
    return dumped(data)


def _needed(request: Any, data: bytes) -> dict[str, Any]:
    return needed(data)


def _route(answer: Callable[[Any, bytes], dict[str, Any]]) -> Callable[[Any], Awaitable[Any]]:
    async def handler(request: Any) -> Any:
        from aiohttp import web

        try:
            data = await request.read()
        except (web.RequestPayloadError, ConnectionError) as error:
            raise web.HTTPBadRequest(text="the request's body does not arrive whole") from error
        try:
            # In a thread: a long file or chain must not stop the server for everybody.
            return web.json_response(await asyncio.to_thread(answer, request, data))
        except PolicyError as error:
            # A person's mistake is an answer; a failed request would be an error of the page in the browser's log.
            mistake = {"message": str(error), "line": error.line, "column": error.column}
            return web.json_response({"error": mistake})
        except ValueError as error:
            raise web.HTTPBadRequest(text=str(error)) from error

    return handler
