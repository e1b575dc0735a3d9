"""The timeline of a run as a file, over the API: the same without a browser."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from email.message import Message
from typing import Any

import pytest

from scripts.comfy_client import DIRECT, ComfyClient, Prompt
from scripts.comfy_server import ComfyServer


def ask(server: ComfyServer, query: str = "") -> tuple[Any, Message]:
    with DIRECT.open(f"{server.url}/api/layerwise_offload/timeline{query}", timeout=30) as answer:
        return json.load(answer), answer.headers


def decoding(width: int) -> Prompt:
    """A placed VAE decodes, and the report tells; each width runs anew."""

    def node(kind: str, **inputs: Any) -> dict[str, Any]:
        return {"class_type": kind, "inputs": inputs}

    return {
        "1": node("VAELoader", vae_name="demo_vae_16ch.safetensors"),
        "2": node("EmptySD3LatentImage", width=width, height=64, batch_size=1),
        "3": node("LayerwiseOffload_PlacementPolicy", vae="layerwise"),
        "4": node("LayerwiseOffload_Loader", vae=["1", 0], policy=["3", 0]),
        "5": node("VAEDecode", vae=["4", 2], samples=["2", 0]),
        "6": node("LayerwiseOffload_PlacementReport", placements=["4", 4], after=["5", 0]),
    }


def test_the_run_of_a_report_is_a_file_that_names_component_and_layer(
    server: ComfyServer, client: ComfyClient
) -> None:
    (report,) = client.run(decoding(64)).outputs["6"]["placement_report"]
    for query in ("", f"?began={report['began']}"):
        trace, headers = ask(server, query)
        name = r'attachment; filename="layerwise-offload-timeline-\d{8}-\d{6}\.json"'
        assert re.fullmatch(name, headers["Content-Disposition"])
        copies = [event for event in trace["traceEvents"] if event.get("cat") == "copies"]
        (row,) = report["rows"]
        assert sum(event["args"]["bytes"] for event in copies) == row["moved_bytes"]
        assert all(event["args"]["component"] == "vae" and event["args"]["layer"] for event in copies)
        assert trace["otherData"]["dropped"] == "0"


def test_a_run_that_is_over_and_one_that_did_nothing_are_a_sentence(
    server: ComfyServer, client: ComfyClient
) -> None:
    (before,) = client.run(decoding(128)).outputs["6"]["placement_report"]
    empty = {"1": {"class_type": "LayerwiseOffload_PlacementReport", "inputs": {}}}
    client.run(empty)
    answer, headers = ask(server, f"?began={before['began']}")
    assert answer["error"]["message"].startswith("another run has begun since, ")
    assert "Content-Disposition" not in headers
    answer, _ = ask(server)
    assert answer["error"]["message"].startswith("the last run loaded and computed no placed component")


@pytest.mark.parametrize("began", ["", "yesterday", "nan", "inf", "%00", "9" * 500])
def test_what_is_no_time_is_a_bad_request(server: ComfyServer, began: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask(server, f"?began={began}")
    with refused.value as answer:
        assert answer.code == 400
        assert answer.read().decode().startswith("began is the time of a run, in seconds")
