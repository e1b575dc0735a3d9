"""The route that hands the timeline of the last run out, as a file that Perfetto and chrome://tracing open."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

from ..offload_runtime.errors import LayerwiseOffloadError
from .running_server import running_server

ROUTE = "/layerwise_offload/timeline"


def add_timeline_route() -> None:
    """Add the route to the running server; where there is none, nobody can ask."""
    running = running_server()
    if running is not None:
        running.routes.get(ROUTE)(_download)


async def _download(request: Any) -> Any:
    """Answer with a file, or with a sentence: that a run has left nothing is no failure of the request."""
    from aiohttp import web

    try:
        began = float(request.query["began"]) if "began" in request.query else None
        if began is not None and not math.isfinite(began):
            raise ValueError(began)
    except ValueError as error:
        asked = request.query["began"][:40]
        raise web.HTTPBadRequest(
            text=f"began is the time of a run, in seconds as its report says it, and “{asked}” is none"
        ) from error
    try:
        name, text = await asyncio.to_thread(_trace, began)
    except LayerwiseOffloadError as error:
        return web.json_response({"error": {"message": str(error)}})
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}
    return web.Response(text=text, content_type="application/json", headers=headers)


def _trace(began: float | None) -> tuple[str, str]:
    from ..offload_runtime.adapter import timeline  # no start pays for it

    name, trace = timeline(began)
    return name, json.dumps(trace, separators=(",", ":"))
