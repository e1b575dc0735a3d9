"""One real ComfyUI server, without a GPU, for all tests of this floor."""

from __future__ import annotations

import copy
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scripts import comfyui_tree, workflow
from scripts.comfy_client import ComfyClient, Prompt
from scripts.comfy_server import THIS_PACK, ComfyServer
from scripts.demo import EXAMPLE
from scripts.demo_models import ensure_models
from scripts.places import demo_models

# Custom nodes that only these tests have.
STAND_INS = Path(__file__).parent / "packs" / "stand_ins"

# ComfyUI logs the sentence of a node that refuses to run with its traceback.
REFUSED = re.compile(r"\S+\.offload_runtime\.errors\.\w+: ")


@pytest.fixture(scope="session")
def server() -> Iterator[ComfyServer]:
    ensure_models(demo_models())
    packs = {**THIS_PACK, STAND_INS.name: STAND_INS}
    with ComfyServer(Path(sys.executable), comfyui_tree.require(), demo_models(), packs=packs) as running:
        yield running
        assert "IMPORT FAILED" not in running.log_text()
        # Every test here ends with a picture or a refusal, so another traceback is an error that nobody was told.
        assert running.tracebacks(but=REFUSED) == []


@pytest.fixture(scope="session")
def client(server: ComfyServer) -> ComfyClient:
    return ComfyClient(server.url)


@pytest.fixture(scope="session")
def object_info(client: ComfyClient) -> dict[str, Any]:
    return client.object_info()


@pytest.fixture(scope="session")
def example() -> dict[str, Any]:
    """The shipped workflow in UI format."""
    return json.loads(EXAMPLE.read_text(encoding="utf-8"))


@pytest.fixture
def with_pack(example: dict[str, Any], object_info: dict[str, Any]) -> Prompt:
    """The shipped workflow as it is queued."""
    return workflow.to_api(example, object_info)


@pytest.fixture
def plain(with_pack: Prompt) -> Prompt:
    """The same without this pack."""
    return workflow.without_pack(with_pack)


@pytest.fixture
def changed(with_pack: Prompt) -> Callable[..., Prompt]:
    """The shipped workflow with other inputs in the one node that has this title (or, without a title, type)."""

    def change(name: str, **inputs: Any) -> Prompt:
        prompt = copy.deepcopy(with_pack)
        prompt[node_called(prompt, name)]["inputs"].update(inputs)
        return prompt

    return change


def node_called(prompt: Prompt, name: str) -> str:
    """The id of the one node with this title or type."""
    (found,) = (
        node_id for node_id, node in prompt.items() if name in (node["_meta"]["title"], node["class_type"])
    )
    return found
