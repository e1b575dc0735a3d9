"""The example workflows for other people's models: valid as they are, and running on stand-ins for their files."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import pytest
from stand_ins import with_stand_ins

from scripts import workflow
from scripts.comfy_client import DIRECT, ComfyClient, Prompt
from scripts.places import ROOT

EXAMPLES = ROOT / "example_workflows"
# What the policy asks for, by component of the stand-ins, and what must have come of it on this CPU.
ASKED = {
    "Flux on a small card": {"text_encoder": "layerwise", "vae": "auto", "diffusion_model": "auto"},
    "Flux Redux with a picture as the prompt": {
        "text_encoder": "layerwise",
        "image_encoder": "layerwise",
        "vae": "auto",
        "diffusion_model": "auto",
    },
    "LTX Video with a resident VAE": {
        "text_encoder": "layerwise",
        "video_vae": "resident",
        "diffusion_model": "auto",
    },
    "Flux with little memory": {
        "text_encoder": "layerwise",
        "image_encoder": "layerwise",
        "vae": "auto",
        "diffusion_model": "auto",
    },
    "LTX Video with little memory": {
        "text_encoder": "layerwise",
        "video_vae": "resident",
        "diffusion_model": "auto",
    },
    "SD 3.5 with a ControlNet": {
        "text_encoder": "layerwise",
        "vae": "auto",
        "diffusion_model": "auto",
        "control_net": "layerwise",
    },
    "SD 3.5 without a graphics card": {"text_encoder": "layerwise", "vae": "auto", "diffusion_model": "auto"},
}

UNCHECKED = {"LTX Video with little memory"}
"""All its files are widgets of loaders of ours, whose choices older versions do not check: they begin to run it."""


@pytest.fixture(params=ASKED)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.parametrize("name", sorted(ASKED.keys() - UNCHECKED))
def test_nothing_is_wrong_with_it_but_that_its_files_are_not_here(
    client: ComfyClient, object_info: dict[str, Any], name: str
) -> None:
    """ComfyUI checks every link, type and range before it refuses; older versions not the choices of V3 nodes."""
    prompt = workflow.load(EXAMPLES / f"{name}.json", object_info)
    errors = {
        (prompt[node_id]["class_type"], error["extra_info"].get("input_name"), error["type"])
        for node_id, node in refusal(client, prompt)["node_errors"].items()
        for error in node["errors"]
    }
    wanted = {
        (node["class_type"], input_name, "value_not_in_list")
        for node in prompt.values()
        for input_name, value in node["inputs"].items()
        if str(value).endswith(".safetensors")
    }
    assert errors
    assert errors <= wanted


def test_it_runs_on_stand_ins_and_the_report_tells_what_was_asked(
    client: ComfyClient, object_info: dict[str, Any], name: str
) -> None:
    prompt = workflow.load(EXAMPLES / f"{name}.json", object_info)
    result = client.run(with_stand_ins(prompt))
    assert result.images()
    ((report,),) = (out["placement_report"] for out in result.outputs.values() if "placement_report" in out)
    rows = {row["component"]: row for row in report["rows"]}
    assert {component: row["asked"] for component, row in rows.items()} == ASKED[name]
    for row in rows.values():
        assert row["applied"] == row["asked"] or row["asked"] == "auto", f"{row['why']} {row['how']}"
        assert row["why"]


def refusal(client: ComfyClient, prompt: Prompt) -> dict[str, Any]:
    """What the server answers to a prompt that it refuses."""
    body = json.dumps({"prompt": prompt}).encode()
    request = urllib.request.Request(f"{client.url}/prompt", body, {"Content-Type": "application/json"})
    with pytest.raises(urllib.error.HTTPError) as refused:
        DIRECT.open(request)
    return json.loads(refused.value.read())
