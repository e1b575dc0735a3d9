"""What the server tells the world about the pack's nodes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scripts.places import ROOT
from scripts.refresh_fixtures import SCHEMAS, outputs, schemas, widgets

NODES = sorted(json.loads(SCHEMAS.read_text(encoding="utf-8")))
# As in the first version, whose workflows are out there and hold values and links by position. Never change a line.
FIRST_WIDGETS = {
    "LayerwiseOffload_LoadPolicy": ["file", "text"],
    "LayerwiseOffload_Loader": [],
    "LayerwiseOffload_PlacementPolicy": [
        "mode",
        "text_encoder",
        "image_encoder",
        "vae",
        "diffusion_model",
        "vram_budget",
        "strict",
    ],
    "LayerwiseOffload_PlacementReport": [],
    "LayerwiseOffload_SavePolicy": ["file", "overwrite"],
    "LayerwiseOffload_SetPlacement": ["component", "placement", "vram_budget", "host", "device"],
}
FIRST_OUTPUTS = {
    "LayerwiseOffload_LoadPolicy": ["policy"],
    "LayerwiseOffload_Loader": ["MODEL", "CLIP", "VAE", "CLIP_VISION", "placements"],
    "LayerwiseOffload_PlacementPolicy": ["policy"],
    "LayerwiseOffload_PlacementReport": ["report", "data"],
    "LayerwiseOffload_SavePolicy": ["text"],
    "LayerwiseOffload_SetPlacement": ["policy"],
}


@pytest.fixture(params=NODES)
def info(request: pytest.FixtureRequest, object_info: dict[str, Any]) -> dict[str, Any]:
    return object_info[request.param]


def test_the_schemas_are_the_ones_that_saved_workflows_rely_on(object_info: dict[str, Any]) -> None:
    assert schemas(object_info) == json.loads(SCHEMAS.read_text(encoding="utf-8")), "run `make fixtures`"


@pytest.mark.parametrize("node_id", FIRST_WIDGETS)
def test_a_node_only_grows_at_its_end(object_info: dict[str, Any], node_id: str) -> None:
    schema = schemas(object_info)[node_id]
    for first, now in ((FIRST_WIDGETS, widgets(schema)), (FIRST_OUTPUTS, outputs(schema))):
        assert now[: len(first[node_id])] == first[node_id], (
            "only add at the end, or old workflows mean another thing"
        )


def test_every_input_has_a_tooltip(info: dict[str, Any]) -> None:
    inputs = {**info["input"].get("required", {}), **info["input"].get("optional", {})}
    assert inputs
    assert [name for name, config in inputs.items() if not config[1].get("tooltip")] == []


def test_every_output_has_a_name_and_a_tooltip(info: dict[str, Any]) -> None:
    assert all(info["output_name"])
    assert len(info["output_tooltips"]) == len(info["output"])
    assert all(info["output_tooltips"])


def test_the_node_is_found_where_the_pack_lives(info: dict[str, Any]) -> None:
    assert info["category"] == "advanced/offload"
    assert info["display_name"]
    assert info["description"]
    assert info["python_module"] == "custom_nodes.layerwise-offload"


def test_the_node_is_found_by_other_words_where_comfyui_knows_them(
    info: dict[str, Any], object_info: dict[str, Any]
) -> None:
    if not any(other.get("search_aliases") for other in object_info.values()):
        return  # this ComfyUI is older than search aliases
    assert info["search_aliases"]


def test_the_node_has_a_help_page_with_an_example(info: dict[str, Any]) -> None:
    page = (ROOT / "web" / "docs" / f"{info['name']}.md").read_text(encoding="utf-8")
    before, heading, example = page.partition("\n## Example\n")
    assert len(before.split()) > 30
    assert heading
    assert len(example.split()) > 10


def test_the_packs_socket_types_carry_its_name(object_info: dict[str, Any]) -> None:
    """So that they clash with no other pack's."""
    ours = {info for name in NODES for info in object_info[name]["output"]}
    assert {kind for kind in ours if "PLACEMENT" in kind or "POLICY" in kind or "REPORT" in kind} == {
        "LAYERWISE_POLICY",
        "LAYERWISE_PLACEMENTS",
        "LAYERWISE_REPORT",
    }


def test_what_few_need_is_advanced(object_info: dict[str, Any]) -> None:
    """The browser hides it until it is asked for; here each version of ComfyUI has to hand that on."""
    advanced = {
        (name.removeprefix("LayerwiseOffload_"), key)
        for name in ("LayerwiseOffload_PlacementPolicy", "LayerwiseOffload_SetPlacement")
        for key, (_, config) in object_info[name]["input"]["optional"].items()
        if config.get("advanced")
    }
    assert advanced == {("PlacementPolicy", "strict"), ("SetPlacement", "host"), ("SetPlacement", "device")}
