"""What the tests ask a server without letting anything run: whether a prompt is valid, and which files it names."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import execution
from aiohttp import web
from server import PromptServer

NODE_CLASS_MAPPINGS: dict[str, Any] = {}
routes = PromptServer.instance.routes


@routes.post("/questions/verdict")
async def verdict(request: web.Request) -> web.Response:
    """Say what ComfyUI says of a prompt before it queues it: the outputs that may run, and each node's errors."""
    valid, error, outputs, of_nodes = await execution.validate_prompt("asked", await request.json(), None)
    errors = {
        node: sorted((e["type"], e["details"]) for e in found["errors"]) for node, found in of_nodes.items()
    }
    return web.json_response(
        {"valid": valid, "error": (error or {}).get("type"), "outputs": sorted(outputs), "errors": errors}
    )


@routes.post("/questions/files")
async def files(request: web.Request) -> web.Response:
    """Say which files the objects that reach a node's inputs may have come from."""
    asked = await request.json()
    ours = next(name for name in sys.modules if name.endswith(".offload_runtime"))
    adapter = importlib.import_module(f"{ours}.adapter")
    prompt = adapter.Prompt(asked["prompt"])
    found = {
        socket: [str(path) for path in adapter.candidate_files(prompt, asked["node"], socket, None)]
        for socket in asked["sockets"]
    }
    return web.json_response(found)
