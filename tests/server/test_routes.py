"""What the browser asks the server about policy files."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from offload_runtime.policy import Source, SourceKind
from offload_runtime.policy.files import parse_policy
from scripts.comfy_client import DIRECT
from scripts.comfy_server import ComfyServer
from scripts.places import ROOT

EXAMPLES = sorted((ROOT / "example_policies").glob("*.offload.*"))
Ask = Callable[[str, bytes], Any]


@pytest.fixture
def ask(server: ComfyServer) -> Ask:
    def post(route: str, body: bytes) -> Any:
        request = urllib.request.Request(f"{server.url}/api/layerwise_offload/policy/{route}", body)
        with DIRECT.open(request, timeout=30) as answer:
            return json.load(answer)

    return post


def chain(*nodes: tuple[str, dict[str, Any]]) -> bytes:
    named = [
        {"class_type": f"LayerwiseOffload_{kind}", "id": str(i), "inputs": inputs}
        for i, (kind, inputs) in enumerate(nodes, 1)
    ]
    return json.dumps({"nodes": named}).encode()


def test_a_file_becomes_the_widget_values_of_a_chain(ask: Ask) -> None:
    text = (
        b"mode: memory\ncomponents:\n  dit: offload\n  text_encoder: {placement: layerwise, host: staged}\n"
    )
    assert ask("parse?name=mine.offload.yaml", text) == {
        "policy": {"mode": "memory", "diffusion_model": "offload", "text_encoder": "layerwise"},
        "overrides": [{"component": "text_encoder", "host": "staged"}],
    }


@pytest.mark.parametrize(
    ("content", "place"),
    [
        (b"mode: auto\ncomponents:\n  text_encoder: layerwize\n", (3, 17)),
        (b"mode: auto\nmode: speed\n", (2, 1)),
        (b"vae: \xff\n", (1, 6)),
        (b'{"nodes": []}', (1, 2)),
    ],
)
def test_a_mistake_comes_with_its_place_and_the_name_of_the_file(
    ask: Ask, content: bytes, place: tuple[int, int]
) -> None:
    error = ask("parse?name=mine.offload.yaml", content)["error"]
    assert (error["line"], error["column"]) == place
    assert error["message"].startswith(f"mine.offload.yaml, line {place[0]}, column {place[1]}: ")


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_a_file_survives_the_way_through_the_nodes(ask: Ask, file: Path) -> None:
    plan = ask(f"parse?name={file.name}", file.read_bytes())
    nodes = [("PlacementPolicy", plan["policy"]), *(("SetPlacement", o) for o in plan["overrides"])]
    source = Source(SourceKind.FILE, "file")
    saved = parse_policy(ask("dump", chain(*nodes))["text"], source)
    assert saved.effective() == parse_policy(file.read_bytes(), source).effective()


def test_a_saved_chain_says_which_node_set_what_and_a_base_loses(ask: Ask) -> None:
    nodes = (
        ("LoadPolicy", {"file": "auto", "text": "{mode: speed, components: {vae: cpu}}"}),
        ("PlacementPolicy", {"mode": "auto", "vae": "resident", "vram_budget": "6GB"}),
        ("SetPlacement", {"component": "text_encoder_2", "placement": "cpu", "device": "auto"}),
    )
    text = ask("dump", chain(*nodes))["text"]
    assert "mode: speed  # policy text, node 1" in text
    assert "vae: resident  # Placement Policy, node 2" in text
    assert "text_encoder_2: cpu  # Set Placement, node 3" in text
    assert "vae: cpu" not in text


def test_a_value_that_cannot_be_saved_is_a_sentence(ask: Ask) -> None:
    error = ask("dump", chain(("PlacementPolicy", {"vram_budget": "6 gigs"})))["error"]
    assert "6 gigs" in error["message"]
    assert error["line"] is None


@pytest.mark.parametrize("body", [b"", b"[]", b'{"nodes": [{"class_type": "KSampler"}]}', b'{"nodes": [7]}'])
def test_what_is_no_chain_is_refused(ask: Ask, body: bytes) -> None:
    with pytest.raises(urllib.error.HTTPError) as refusal:
        ask("dump", body)
    with refusal.value as answer:
        assert answer.code == 400
