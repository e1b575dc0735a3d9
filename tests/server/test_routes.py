"""What the browser asks the server about policy files."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from offload_runtime.policy import COMPONENTS, Source, SourceKind
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


def dumped_with(**node: Any) -> bytes:
    return json.dumps(
        {"nodes": [{"class_type": "LayerwiseOffload_LoadPolicy", "id": "1", "inputs": {}, **node}]}
    ).encode()


NO_CHAINS = {
    "nothing": b"",
    "no JSON": b"{",
    "no UTF-8": b'{"nodes": "\xff"}',
    "a list": b"[]",
    "a text": b'"nodes"',
    "null": b"null",
    "no nodes": b"{}",
    "nodes that are no list": b'{"nodes": {"a": 1}}',
    "nodes that are null": b'{"nodes": null}',
    "a node that is a number": b'{"nodes": [7]}',
    "a node that is a text": b'{"nodes": ["class_type"]}',
    "a node without id": b'{"nodes": [{"class_type": "KSampler"}]}',
    "somebody else's node": dumped_with(class_type="KSampler"),
    "a type that is a list": dumped_with(class_type=[]),
    "an id that is a list": dumped_with(id=[1]),
    "inputs that are a list": dumped_with(inputs=[["file", "auto"]]),
    "inputs that are a text": dumped_with(inputs="file"),
    "inputs that are null": dumped_with(inputs=None),
    "a link": dumped_with(inputs={"text": ["4", 0]}),
    "a file that is a number": dumped_with(inputs={"file": 5}),
    "a file that is a switch": dumped_with(inputs={"file": True}),
    "a text that is a list": dumped_with(inputs={"text": ["a"]}),
    "a text that is a mapping": dumped_with(inputs={"text": {"vae": "cpu"}}),
    "a budget that is a list": dumped_with(
        class_type="LayerwiseOffload_PlacementPolicy", inputs={"vram_budget": ["8GB"]}
    ),
    "deep lists": b"[" * 200_000,
    "deep lists in a node": b'{"nodes": ' + b"[" * 200_000,
    "deep mappings": b'{"nodes":' * 100_000,
    "a long number": b'{"nodes": [' + b"9" * 10_000 + b"]}",
}


@pytest.mark.parametrize("body", NO_CHAINS.values(), ids=NO_CHAINS.keys())
def test_what_is_no_chain_is_refused_with_a_sentence(ask: Ask, body: bytes) -> None:
    with pytest.raises(urllib.error.HTTPError) as refusal:
        ask("dump", body)
    with refusal.value as answer:
        assert answer.code == 400
        assert answer.read().decode().startswith("a chain of policy nodes is ")


@pytest.mark.parametrize("value", [None, 8, 1.5, True, "", "6 gigs", "\ud800", "6\u212aB"])
@pytest.mark.parametrize("widget", ["mode", "vae", "strict", "vram_budget"])
def test_any_plain_value_is_saved_or_refused_with_a_sentence(ask: Ask, widget: str, value: Any) -> None:
    answer = ask("dump", chain(("PlacementPolicy", {widget: value})))
    assert "version: 1\n" in answer["text"] if "text" in answer else widget in answer["error"]["message"]


@pytest.mark.parametrize("value", ["", "auto", "../x", "nowhere", "\ud800", "a\x00b", "x" * 10_000, "策略"])
@pytest.mark.parametrize("widget", ["file", "text"])
def test_any_file_or_text_is_read_or_refused_with_a_sentence(ask: Ask, widget: str, value: str) -> None:
    answer = ask("dump", chain(("LoadPolicy", {widget: value})))
    assert ("error" in answer) is (value not in ("", "auto"))


@pytest.mark.parametrize(
    "content",
    [b"\x00", b"[" * 60_000, b"{" * 60_000, b"\xef\xbb\xbf", b"%", b"mode: \xed\xa0\x80", b"- " * 30_000],
)
@pytest.mark.parametrize(
    "name", ["", "%00", "%ff", "%F0%9F%98%80.yaml", "..%2f..%2fetc%2fpasswd", "x" * 3000]
)
def test_any_bytes_of_any_file_are_read_or_refused_with_a_sentence(
    ask: Ask, content: bytes, name: str
) -> None:
    answer = ask(f"parse?name={name}", content)
    assert "policy" in answer or "line " in answer["error"]["message"]


@pytest.mark.parametrize(
    "name", ["policy.offload (1).yaml", "policy.offload copy.yaml", "policy.yaml", "policy.json", "策略.yml"]
)
def test_a_file_is_read_whatever_the_browser_calls_it(ask: Ask, name: str) -> None:
    answer = ask(f"parse?name={urllib.parse.quote(name)}", b"{components: {vae: cpu}}")
    assert answer == {"policy": {"vae": "cpu"}, "overrides": []}


@pytest.mark.parametrize("route", ["parse", "dump"])
def test_a_browser_that_goes_away_leaves_no_trace(server: ComfyServer, ask: Ask, route: str) -> None:
    """The log is looked at when the server stops."""
    head = f"POST /api/layerwise_offload/policy/{route} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as gone:
        gone.sendall(head.encode() + b"abc")
    assert ask("parse", b"") == {"policy": {}, "overrides": []}


def test_a_file_that_is_too_large_is_refused_with_its_size(ask: Ask) -> None:
    message = ask("parse?name=movie.json", b"#" * 10_000_000)["error"]["message"]
    assert message.startswith("movie.json, line 1, column 1: the file has 10000000 bytes")
    message = ask("dump", b"[" * 10_000_000)["error"]["message"]
    assert "10000000 bytes" in message


def test_a_very_long_chain_is_saved_whole(ask: Ask) -> None:
    names = [f"{name}_{i}" for name in sorted(COMPONENTS)[:9] for i in range(2, 1000)]
    count = 20_000
    wishes = [
        ("SetPlacement", {"component": names[i % len(names)], "placement": "cpu", "host": "staged"})
        for i in range(count)
    ]
    text = ask("dump", chain(*wishes))["text"]
    assert text.count("placement: cpu") == len(names)
    assert f"Set Placement, node {count}" in text


def test_a_workflow_is_answered_with_what_it_needs(server: ComfyServer) -> None:
    file = ROOT / "tests" / "unit" / "workflow" / "flux_lora.json"
    body = b'{"workflow": ' + file.read_bytes() + b"}"
    with DIRECT.open(
        urllib.request.Request(f"{server.url}/api/layerwise_offload/place", body), timeout=30
    ) as answer:
        told = json.load(answer)
    assert told == {
        "levels": [
            {
                "graph": None,
                "after": None,
                "loaders": [
                    {
                        "kind": "LayerwiseOffload_Loader",
                        "sources": {
                            "model": {"node": 1, "slot": 0, "links": [1]},
                            "clip": {"node": 2, "slot": 0, "links": [2]},
                            "vae": {"node": 3, "slot": 0, "links": [3]},
                        },
                    }
                ],
            }
        ],
        "left_out": [],
    }


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"workflow": 3}', b'{"workflow": {"nodes": [1]}}', b"\xff"]
)
def test_what_is_no_workflow_is_a_bad_request(server: ComfyServer, body: bytes) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        DIRECT.open(urllib.request.Request(f"{server.url}/api/layerwise_offload/place", body), timeout=30)
    assert refused.value.code == 400
    assert "a workflow as ComfyUI saves it" in refused.value.read().decode()
