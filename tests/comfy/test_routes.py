"""The routes answer beside ComfyUI's event loop, not in it."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from graphs import register


@pytest.fixture
def routes() -> Any:
    register()
    return sys.modules["layerwise_offload_under_test.nodes.routes"]


def test_the_server_goes_on_while_an_answer_is_being_made(routes: Any) -> None:
    loop_ran = threading.Event()

    def answer(request: Any, data: bytes) -> dict[str, Any]:
        return {"went on": loop_ran.wait(20), "data": data.decode()}

    async def read() -> bytes:
        return b"body"

    async def serve() -> Any:
        asyncio.get_running_loop().call_later(0.1, loop_ran.set)
        return await routes._route(answer)(SimpleNamespace(read=read))

    assert json.loads(asyncio.run(serve()).text) == {"went on": True, "data": "body"}


@pytest.mark.parametrize(
    "failure", [web.RequestPayloadError("gzip"), ConnectionResetError("Connection lost")]
)
def test_a_body_that_does_not_arrive_whole_is_a_bad_request(routes: Any, failure: Exception) -> None:
    """Packed wrongly, or the browser has gone."""

    async def read() -> bytes:
        raise failure

    with pytest.raises(web.HTTPBadRequest) as refused:
        asyncio.run(routes._route(routes._dump)(SimpleNamespace(read=read)))
    assert refused.value.text == "the request's body does not arrive whole"
