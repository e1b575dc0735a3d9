"""What the server tells the world about the pack's nodes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scripts.places import ROOT
from scripts.refresh_fixtures import SCHEMAS, schemas

NODES = sorted(json.loads(SCHEMAS.read_text(encoding="utf-8")))


@pytest.fixture(params=NODES)
def info(request: pytest.FixtureRequest, object_info: dict[str, Any]) -> dict[str, Any]:
    return object_info[request.param]


def test_the_schemas_are_the_ones_that_saved_workflows_rely_on(object_info: dict[str, Any]) -> None:
    assert schemas(object_info) == json.loads(SCHEMAS.read_text(encoding="utf-8")), "run `make fixtures`"


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
