"""A policy survives every way in which people share workflows, and says so where it cannot apply."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from comfy_page import ComfyPage
from playwright.sync_api import expect

from scripts import workflow
from scripts.comfy_client import ComfyClient, Prompt

POLICY = "LayerwiseOffload_PlacementPolicy"
SET = "LayerwiseOffload_SetPlacement"
LOAD = "LayerwiseOffload_LoadPolicy"
SAVE = "LayerwiseOffload_SavePolicy"
LOADER = "LayerwiseOffload_Loader"
REPORT = "LayerwiseOffload_PlacementReport"
# No value is its widget's first choice, and the text holds what a careless format would lose.
EXPLICIT: dict[str, dict[str, Any]] = {
    LOAD: {"text": 'version: 1\ncomponents:\n  "text_encoder, vae": cpu  # “quoted” 低显存\n\n'},
    POLICY: {
        "mode": "memory",
        "text_encoder": "layerwise",
        "image_encoder": "offload",
        "vae": "resident",
        "diffusion_model": "cpu",
        "vram_budget": "50%",
        "strict": "off",
    },
    SET: {"component": "text_encoder_2", "placement": "resident", "vram_budget": "2GB", "host": "staged"},
    SAVE: {"file": "auto"},
}


@pytest.fixture
def chain(comfy: ComfyPage) -> dict[str, str]:
    """Every kind of policy node with explicit values, wired one behind the other. Ids by node type."""
    return comfy.build(
        EXPLICIT,
        [
            f"{LOAD}.policy -> {POLICY}.base",
            f"{POLICY}.policy -> {SET}.base",
            f"{SET}.policy -> {SAVE}.policy",
        ],
    )


def test_saved_and_opened_again(comfy: ComfyPage, chain: dict[str, str]) -> None:
    queued = comfy.prompt()
    for kind, values in EXPLICIT.items():
        assert values.items() <= queued[chain[kind]]["inputs"].items()
    saved = comfy.workflow()
    comfy.reset()
    comfy.load(saved)
    assert comfy.prompt() == queued


def test_exported_for_the_api_and_dropped_on_the_canvas(comfy: ComfyPage, chain: dict[str, str]) -> None:
    queued = comfy.prompt()
    comfy.reset()
    comfy.drop({"exported.json": json.dumps(queued)}, at=(800, 500))
    comfy.page.wait_for_function("app.canvas.graph.nodes.length === 4")
    assert comfy.prompt() == queued


def test_dropped_as_the_picture_that_a_run_saved(
    comfy: ComfyPage, client: ComfyClient, decoding: dict[str, str]
) -> None:
    queued = comfy.prompt()
    (image,) = comfy.run()[decoding["SaveImage"]]["images"]
    comfy.reset()
    comfy.drop({"picture.png": client.view(image)}, at=(800, 500))
    comfy.page.wait_for_function("app.canvas.graph.nodes.length === 7")
    assert comfy.prompt() == queued


def test_copied_and_pasted(comfy: ComfyPage, chain: dict[str, str]) -> None:
    comfy.select_all()
    comfy.page.evaluate("app.canvas.copyToClipboard()")
    comfy.page.evaluate("app.canvas.pasteFromClipboard()")
    for kind, first in chain.items():
        (second,) = set(comfy.node_ids(kind)) - {first}
        assert comfy.widgets(second) == comfy.widgets(first)
    queued = comfy.prompt()
    (second_set,) = set(comfy.node_ids(SET)) - {chain[SET]}
    base, _ = queued[second_set]["inputs"]["base"]
    assert base != chain[POLICY], "the copy hangs on the original"
    assert queued[base]["class_type"] == POLICY


def test_sent_to_a_person_without_the_pack_and_back(
    comfy: ComfyPage, chain: dict[str, str], elsewhere: ComfyPage
) -> None:
    queued, sent = comfy.prompt(), comfy.workflow()
    elsewhere.load(sent)
    assert set(elsewhere.missing_types()) == set(EXPLICIT)
    expect(elsewhere.page.get_by_text("Missing node").first).to_be_visible()
    back = elsewhere.workflow()
    comfy.reset()
    comfy.load(back)
    assert comfy.missing_types() == []
    assert comfy.prompt() == queued


def flat(comfy: ComfyPage, decoding: dict[str, str]) -> None:
    """No subgraph at all."""


def plain(comfy: ComfyPage, decoding: dict[str, str]) -> None:
    """The pack's nodes in front of the models, in one subgraph."""
    comfy.to_subgraph(decoding[POLICY], decoding[LOADER])


def promoted(comfy: ComfyPage, decoding: dict[str, str]) -> None:
    """A placement is shown on the subgraph's outside, and changed there."""
    outside = comfy.to_subgraph(decoding[POLICY], decoding[LOADER])
    comfy.promote(outside, POLICY, "vae", "vae_placement")
    comfy.promote(outside, POLICY, "mode", "mode")
    comfy.set_widget(outside, "vae_placement", "resident")
    comfy.set_widget(outside, "mode", "memory")


def nested(comfy: ComfyPage, decoding: dict[str, str]) -> None:
    """A subgraph in a subgraph; the inner one holds the policy alone."""
    inner = comfy.to_subgraph(decoding[POLICY])
    comfy.promote(inner, POLICY, "vae", "vae_placement")
    comfy.set_widget(inner, "vae_placement", "offload")
    comfy.to_subgraph(inner, decoding[LOADER], decoding["VAEDecode"])


def bypassed(comfy: ComfyPage, decoding: dict[str, str]) -> None:
    """The whole subgraph is bypassed, and with it the policy."""
    outside = comfy.to_subgraph(decoding[POLICY], decoding[LOADER])
    comfy.select_all(outside)
    comfy.command("Comfy.Canvas.ToggleSelectedNodes.Bypass")


SHAPES = [flat, plain, promoted, nested, bypassed]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_subgraphs_are_queued_as_our_converter_says(
    comfy: ComfyPage,
    decoding: dict[str, str],
    object_info: dict[str, Any],
    shape: Callable[[ComfyPage, dict[str, str]], None],
) -> None:
    shape(comfy, decoding)
    assert comfy.prompt() == workflow.to_api(comfy.workflow(), object_info)


@pytest.mark.parametrize(
    ("shape", "vae", "mode"),
    [(plain, "layerwise", "auto"), (promoted, "resident", "memory"), (nested, "offload", "auto")],
    ids=["plain", "promoted", "nested"],
)
def test_put_in_a_subgraph_saved_and_opened_again(
    comfy: ComfyPage,
    decoding: dict[str, str],
    shape: Callable[[ComfyPage, dict[str, str]], None],
    vae: str,
    mode: str,
) -> None:
    shape(comfy, decoding)
    saved = comfy.workflow()
    comfy.reset()
    comfy.load(saved)
    values = inputs_of(comfy.prompt(), POLICY)
    assert (values["vae"], values["mode"], values["vram_budget"]) == (vae, mode, "2GB")


def test_the_report_says_where_in_a_subgraph_a_wish_comes_from_and_what_cannot_apply(
    comfy: ComfyPage, decoding: dict[str, str]
) -> None:
    """The policy was made for a card of 2 GB; this server has none."""
    outside = comfy.to_subgraph(decoding[POLICY], decoding[LOADER])
    outputs = comfy.run()
    ((report,),) = [output["placement_report"] for output in outputs.values() if "placement_report" in output]
    (row,) = report["rows"]
    where = f"Placement Policy, node {outside}:{decoding[POLICY]}"
    assert (row["component"], row["asked"], row["applied"]) == ("vae", "layerwise", "layerwise")
    assert row["asked_by"] == where
    assert report["notes"] == [f"The VRAM budget of 2.00 GB from {where} has no meaning on the CPU."]


def inputs_of(prompt: Prompt, kind: str) -> dict[str, Any]:
    """Inputs of the one node of this type, wherever it is."""
    (found,) = (node["inputs"] for node in prompt.values() if node["class_type"] == kind)
    return found
