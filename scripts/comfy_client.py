"""Queue prompts on a ComfyUI server over /prompt and /ws, and turn its refusals into sentences."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import websocket

from .comfy_errors import execution_problem, refusal_problem
from .problem import Problem

# A proxy in the environment is for the world outside, not for the server on this machine.
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))

Prompt = dict[str, dict[str, Any]]
# Called with the node's id when it begins, and with (value, maximum) while it works.
OnProgress = Callable[[str, "tuple[int, int] | None"], None]


@dataclass
class Result:
    """What a prompt left behind: UI outputs by node id, which nodes ran, which came from the cache."""

    prompt_id: str
    outputs: dict[str, dict[str, Any]]
    executed: list[str] = field(default_factory=list)
    cached: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def images(self) -> list[dict[str, str]]:
        """Saved and previewed images, in the order of their nodes' ids."""
        in_order = sorted(self.outputs.items(), key=lambda item: (len(item[0]), item[0]))
        return [image for _, output in in_order for image in output.get("images", [])]


class Interrupted(Problem):
    """The prompt was interrupted before it ended."""


class ComfyClient:
    """A client of one server. Prompts queued here report their progress to this client only."""

    def __init__(self, url: str, seconds: float = 600) -> None:
        self.url, self.seconds = url, seconds
        self.id = uuid.uuid4().hex

    def object_info(self) -> dict[str, Any]:
        return self.get_json("/object_info")

    def run(self, prompt: Prompt, on_progress: OnProgress | None = None) -> Result:
        """Queue a prompt and wait for its end.

        Raises:
            Problem: the server refused the prompt, a node failed, or the server went away.
            Interrupted: somebody interrupted it.
        """
        started = time.monotonic()
        address = self.url.replace("http", "ws", 1) + f"/ws?clientId={self.id}"
        try:
            socket = websocket.create_connection(address, timeout=self.seconds)
        except OSError as error:
            raise Problem(f"ComfyUI does not answer at {self.url}: {error}.") from error
        try:
            prompt_id = self.queue(prompt)
            result = Result(prompt_id, {})
            for kind, data in _messages(socket, prompt_id):
                self._follow(prompt, result, kind, data, on_progress)
        finally:
            socket.close()
        result.outputs = self.get_json(f"/history/{prompt_id}")[prompt_id]["outputs"]
        result.seconds = time.monotonic() - started
        return result

    def queue(self, prompt: Prompt) -> str:
        """POST the prompt; returns its id. Raises a Problem made of the server's validation errors."""
        try:
            answer = self._open("/prompt", {"prompt": prompt, "client_id": self.id})
        except urllib.error.HTTPError as error:
            raise refusal_problem(prompt, json.loads(error.read())) from error
        accepted = json.loads(answer)
        if accepted.get("node_errors"):
            # ComfyUI runs the outputs that are valid and drops the others; half a picture is no answer.
            self._open("/queue", {"delete": [accepted["prompt_id"]]})
            self.interrupt()
            raise refusal_problem(prompt, accepted)
        return accepted["prompt_id"]

    def free(self) -> None:
        """Unload the models and empty the cache, and return when that has happened."""
        self._open("/free", {"unload_models": True, "free_memory": True})
        # The server's worker obeys between two prompts; when it has run this one, it has passed that point or
        # passes it before it takes the next prompt.
        self.run(
            {
                "1": {
                    "class_type": "EmptyImage",
                    "inputs": {"width": 8, "height": 8, "batch_size": 1, "color": 0},
                },
                "2": {"class_type": "PreviewImage", "inputs": {"images": ["1", 0]}},
            }
        )

    def interrupt(self) -> None:
        self._open("/interrupt", {})

    def view(self, image: dict[str, str]) -> bytes:
        """The bytes of an output image."""
        return self._open(f"/view?{urllib.parse.urlencode(image)}")

    def get_json(self, path: str) -> Any:
        return json.loads(self._open(path))

    def _open(self, path: str, body: object | None = None) -> bytes:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        with DIRECT.open(request, timeout=self.seconds) as answer:
            return answer.read()

    def _follow(
        self, prompt: Prompt, result: Result, kind: str, data: dict[str, Any], on_progress: OnProgress | None
    ) -> None:
        if kind == "execution_cached":
            result.cached = [str(node) for node in data["nodes"]]
        elif kind == "executing" and data["node"] is not None:
            result.executed.append(str(data["node"]))
            if on_progress:
                on_progress(str(data["node"]), None)
        elif kind == "progress" and on_progress and data.get("node"):
            on_progress(str(data["node"]), (int(data["value"]), int(data["max"])))
        elif kind == "execution_error":
            raise execution_problem(prompt, data)
        elif kind == "execution_interrupted":
            raise Interrupted("the prompt was interrupted.")


def _messages(socket: websocket.WebSocket, prompt_id: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The messages about one prompt, until it ends."""
    while True:
        try:
            text = socket.recv()
        except (OSError, websocket.WebSocketException) as error:
            raise Problem(f"the connection to ComfyUI broke while it was working: {error}.") from error
        if not isinstance(text, str) or not text:
            continue  # binary messages are preview pictures
        message = json.loads(text)
        kind, data = message["type"], message["data"]
        if data.get("prompt_id") != prompt_id:
            continue
        yield kind, data
        if kind == "executing" and data["node"] is None:
            return
