"""The setting *Apply my default policy to every workflow*, as a client of the API meets it."""

from __future__ import annotations

import io
import json
import sysconfig
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from offload_runtime.workflow import of_object_info, place
from scripts import workflow
from scripts.comfy_client import DIRECT, ComfyClient, Prompt, Result
from scripts.comfy_server import ComfyServer
from scripts.problem import Problem

FOLDERS = Path(sysconfig.get_paths()["purelib"])
SETTING = "LayerwiseOffload.Placement.EveryPrompt"
LOADER = "LayerwiseOffload_Loader"
SAID = "Apply my default policy to every workflow"
PROMPT: Prompt = {
    "1": {"class_type": "VAELoader", "inputs": {"vae_name": "demo_vae_16ch.safetensors"}},
    "2": {"class_type": "EmptySD3LatentImage", "inputs": {"width": 64, "height": 64, "batch_size": 1}},
    "3": {"class_type": "VAEDecode", "inputs": {"samples": ["2", 0], "vae": ["1", 0]}},
    "4": {"class_type": "PreviewImage", "inputs": {"images": ["3", 0]}},
    "5": {"class_type": "CLIPLoader", "inputs": {"clip_name": "missing.safetensors", "type": "sd3"}},
    "6": {"class_type": "CLIPTextEncode", "inputs": {"clip": ["5", 0], "text": "nothing that runs uses it"}},
}


def set_to(server: ComfyServer, value: Any) -> None:
    request = urllib.request.Request(f"{server.url}/settings/{SETTING}", json.dumps(value).encode())
    DIRECT.open(request, timeout=30).close()


@pytest.fixture
def on(server: ComfyServer) -> Iterator[None]:
    set_to(server, True)
    yield
    set_to(server, False)


def answer(server: ComfyServer, prompt: Any) -> tuple[int, str]:
    """What the server answers at once."""
    body = json.dumps({"prompt": prompt}).encode()
    request = urllib.request.Request(f"{server.url}/prompt", body, {"Content-Type": "application/json"})
    try:
        with DIRECT.open(request, timeout=30) as given:
            return given.status, given.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def queued(client: ComfyClient, result: Result) -> Prompt:
    """The prompt as the server ran it."""
    return client.get_json(f"/history/{result.prompt_id}")[result.prompt_id]["prompt"][2]


def pixels(client: ComfyClient, result: Result) -> bytes:
    """The picture itself: what is before the end of the file's text, which holds the prompt, differs."""
    (image,) = result.images()
    return Image.open(io.BytesIO(client.view(image))).tobytes()


def test_off_by_default_nothing_is_touched(client: ComfyClient) -> None:
    result = client.run(PROMPT)
    assert queued(client, result) == PROMPT


def test_on_a_prompt_runs_placed_and_gives_the_same_picture(client: ComfyClient, server: ComfyServer) -> None:
    client.free()
    plain = client.run(PROMPT)
    set_to(server, True)
    try:
        placed = client.run(PROMPT)
        again = client.run(PROMPT)
    finally:
        set_to(server, False)
    assert pixels(client, placed) == pixels(client, plain)
    ran = queued(client, placed)
    (loader,) = [name for name, node in ran.items() if node["class_type"] == LOADER]
    assert ran[loader]["inputs"] == {"vae": ["1", 0]}, "what nothing that runs uses is not loaded"
    assert ran == {
        **PROMPT,
        "3": {"class_type": "VAEDecode", "inputs": {"samples": ["2", 0], "vae": [loader, 2]}},
        loader: ran[loader],
    }
    assert [row["component"] for row in placed.outputs[loader]["placement_decisions"][0]["rows"]] == ["vae"]
    assert {"1", "2"} <= set(placed.cached), "other nodes keep their ids, and so their cache"
    assert not {"1", "2", "3"} & set(again.executed)
    assert "node 1 (VAELoader): VAE" in [line for line in server.log_text().splitlines() if SAID in line][-1]


def test_a_prompt_that_has_nodes_of_ours_is_left_alone(client: ComfyClient, on: None) -> None:
    ours = {
        "1": PROMPT["1"],
        "7": {"class_type": LOADER, "inputs": {"vae": ["1", 0]}},
        "8": {"class_type": "LayerwiseOffload_PlacementReport", "inputs": {"placements": ["7", 4]}},
    }
    assert queued(client, client.run(ours)) == ours


@pytest.mark.parametrize(
    "prompt",
    [
        {},
        {"1": {"inputs": {}}},
        {"1": {"class_type": "Nonsense", "inputs": {}}},
        {**PROMPT, "3": {"class_type": "VAEDecode", "inputs": {"vae": ["1", 7]}}},
    ],
)
def test_nonsense_is_refused_by_comfyui_as_ever(server: ComfyServer, prompt: Any) -> None:
    off = answer(server, prompt)
    before = server.log_text()
    set_to(server, True)
    try:
        assert answer(server, prompt) == off
    finally:
        set_to(server, False)
    lines = [line for line in server.log_text()[len(before) :].splitlines() if "Layerwise Offload" in line]
    assert len(lines) <= 1


def test_templates_get_the_verdict_that_they_get_unplaced(
    server: ComfyServer, client: ComfyClient, object_info: dict[str, Any]
) -> None:
    """Their weights are not here, so each is refused, for the same inputs of the same nodes."""
    types = of_object_info(object_info)
    count = 0
    for template, prompt in templates(object_info):
        placed = place(prompt, None, types)
        if placed.loaders:
            count += 1
            assert verdict(server, client, placed.document) == verdict(server, client, prompt), template
    if not count:
        pytest.skip("the templates are not installed here")
    assert count > 50


def templates(object_info: dict[str, Any]) -> Iterator[tuple[str, Prompt]]:
    """Every installed template that this ComfyUI has all nodes for."""
    for file in sorted(FOLDERS.glob("comfyui_workflow_templates*/templates/*.json")):
        try:
            yield file.stem, workflow.load(file, object_info)
        except Problem:  # an index, or nodes of a service
            continue


def verdict(server: ComfyServer, client: ComfyClient, prompt: Prompt) -> Any:
    """What the server says to a prompt, by node and input; what it would run after all is taken back."""
    status, text = answer(server, prompt)
    told = json.loads(text)
    if status == 200:
        for path, body in (("/queue", {"delete": [told["prompt_id"]]}), ("/interrupt", {})):
            DIRECT.open(
                urllib.request.Request(server.url + path, json.dumps(body).encode()), timeout=30
            ).close()
    errors = {
        node: [(one["type"], one["details"]) for one in error["errors"]]
        for node, error in told["node_errors"].items()
    }
    return status, told.get("error", {}).get("type"), errors
