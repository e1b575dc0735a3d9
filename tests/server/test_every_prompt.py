"""The setting *Apply my default policy to every workflow*, as a client of the API meets it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from scripts.comfy_client import DIRECT, ComfyClient, Prompt, Result
from scripts.comfy_server import ComfyServer

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


def queued(client: ComfyClient, result: Result) -> Prompt:
    """The prompt as the server ran it."""
    return client.get_json(f"/history/{result.prompt_id}")[result.prompt_id]["prompt"][2]


def pixels(client: ComfyClient, result: Result) -> bytes:
    """The picture itself: what is before the end of the file's text, which holds the prompt, differs."""
    import io

    from PIL import Image

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
    def answer() -> tuple[int, str]:
        request = urllib.request.Request(
            f"{server.url}/prompt",
            json.dumps({"prompt": prompt}).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with DIRECT.open(request, timeout=30) as given:
                return given.status, given.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    off = answer()
    before = server.log_text()
    set_to(server, True)
    try:
        assert answer() == off
    finally:
        set_to(server, False)
    lines = [line for line in server.log_text()[len(before) :].splitlines() if "Layerwise Offload" in line]
    assert len(lines) <= 1
