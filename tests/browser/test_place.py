"""*Place this workflow* and *Remove placement*: no wiring by hand, in one step, and back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from comfy_page import ComfyPage
from playwright.sync_api import expect

from scripts.comfy_client import ComfyClient
from scripts.places import ROOT

POLICY = "LayerwiseOffload_PlacementPolicy"
OVERRIDE = "LayerwiseOffload_SetPlacement"
LOAD = "LayerwiseOffload_LoadPolicy"
LOADER = "LayerwiseOffload_Loader"
OTHER = "LayerwiseOffload_OtherModels"
PLACE, REMOVE = "LayerwiseOffload.PlaceWorkflow", "LayerwiseOffload.RemovePlacement"
# The frontend makes nodes larger, as for a picture, whenever it likes.
FRONTENDS_OWN = ("size",)
FLUX = json.loads((ROOT / "tests" / "unit" / "workflow" / "flux_lora.json").read_text(encoding="utf-8"))


@pytest.fixture
def plain(comfy: ComfyPage) -> dict[str, str]:
    """A graph without the pack that runs in a second. Ids by node type."""
    ids = comfy.build(
        {
            "VAELoader": {"vae_name": "demo_vae_16ch.safetensors"},
            "EmptySD3LatentImage": {"width": 64, "height": 64},
            "VAEDecode": {},
            "SaveImage": {"filename_prefix": "browser"},
        },
        [
            "VAELoader.VAE -> VAEDecode.vae",
            "EmptySD3LatentImage.LATENT -> VAEDecode.samples",
            "VAEDecode.IMAGE -> SaveImage.images",
        ],
    )
    remember(comfy)
    return ids


def remember(comfy: ComfyPage) -> None:
    """Let the frontend take the graph as a step, as it does after what a person does."""
    comfy.page.evaluate(
        """() => {
            const tracker = app.extensionManager.workflow.activeWorkflow.changeTracker;
            (tracker.captureCanvasState ?? tracker.checkState).call(tracker);
        }"""
    )


def graph(workflow: dict[str, Any]) -> dict[str, Any]:
    """All that a workflow's levels hold, by the way there, without the numbers of links."""
    levels = [workflow, *workflow.get("definitions", {}).get("subgraphs", [])]
    return dict(flat([level(one) for one in levels], ""))


def flat(tree: Any, way: str) -> Iterator[tuple[str, Any]]:
    if isinstance(tree, dict | list) and tree:
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from flat(value, f"{way}/{key}")
    else:
        yield way, tree


def level(data: dict[str, Any]) -> dict[str, Any]:
    names = ("origin_id", "origin_slot", "target_id", "target_slot")
    raw = [
        [link["id"], *(link[name] for name in names)] if isinstance(link, dict) else link
        for link in data["links"]
    ]
    ends = {link[0]: [str(part) for part in link[1:5]] for link in raw}
    nodes = []
    for node in data["nodes"]:
        inputs = [{**one, "link": ends.get(one.get("link"))} for one in node.get("inputs", [])]
        outputs = [
            {**one, "links": sorted(ends[link] for link in one.get("links") or [])}
            for one in node.get("outputs", [])
        ]
        kept = {key: value for key, value in node.items() if key not in FRONTENDS_OWN and value != []}
        nodes.append({**kept, "inputs": inputs, "outputs": outputs})
    return {"nodes": sorted(nodes, key=lambda node: str(node["id"])), "links": sorted(ends.values())}


def place(comfy: ComfyPage, command: str = PLACE) -> str:
    """Execute the command; returns what the notice says, which is then gone."""
    toast = comfy.page.locator(".p-toast-message")
    comfy.command(command)
    expect(toast).to_have_count(1)
    said = toast.inner_text()
    comfy.page.evaluate("(app.extensionManager.toast.removeAll ?? app.extensionManager.toast.dismissAll)()")
    expect(toast).to_have_count(0)
    comfy.frames(3)
    return said


def undo(comfy: ComfyPage) -> None:
    """Take one step back, and wait until the graph of before is open; a busy machine takes its time."""
    comfy.page.evaluate("app.canvas.graph.nodes[0].__open = true")
    comfy.command("Comfy.Undo")
    comfy.page.wait_for_function("app.canvas.graph.nodes.length && !app.canvas.graph.nodes[0].__open")
    comfy.frames(5)


def test_places_and_the_run_tells_what_came_of_it(comfy: ComfyPage, plain: dict[str, str]) -> None:
    said = place(comfy)
    assert "Workflow placed" in said
    assert "Models: 1. Loaders inserted: 1." in said
    loader, policy = comfy.node_id(LOADER), comfy.node_id(POLICY)
    prompt = comfy.prompt()
    assert prompt[plain["VAEDecode"]]["inputs"]["vae"] == [loader, 2]
    assert prompt[loader]["inputs"] == {"vae": [plain["VAELoader"], 0], "policy": [policy, 0]}
    boxes = comfy.boxes()
    for new in (loader, policy):
        assert not any(boxes[new].covers(box) for node_id, box in boxes.items() if node_id != new)
    comfy.fit()
    comfy.screenshot("placed")
    (decided,) = comfy.run()[loader]["placement_decisions"]
    assert [row["component"] for row in decided["rows"]] == ["vae"]


def test_one_undo_takes_it_back(comfy: ComfyPage, plain: dict[str, str]) -> None:
    before = without_positions(comfy)
    place(comfy)
    assert without_positions(comfy) != before
    undo(comfy)
    assert without_positions(comfy) == before
    comfy.command("Comfy.Redo")
    comfy.frames(5)
    assert len(comfy.node_ids(LOADER)) == 1


def without_positions(comfy: ComfyPage) -> dict[str, Any]:
    """The graph, but not where nodes are: an undo opens it anew, and frontends may spread it then."""
    return {way: value for way, value in graph(comfy.workflow()).items() if "/pos/" not in way}


def test_removing_leaves_the_graph_as_it_was(comfy: ComfyPage) -> None:
    comfy.load(FLUX)
    before, queued = graph(comfy.workflow()), comfy.prompt()
    assert "Models: 3. Loaders inserted: 1." in place(comfy)
    placed = comfy.prompt()
    loader = comfy.node_id(LOADER)
    assert placed["4"]["inputs"]["model"] == [loader, 0], "in front of the LoRA"
    assert placed["4"]["inputs"]["clip"] == [loader, 1]
    comfy.fit()
    comfy.screenshot("placed-flux")
    assert "Nodes: 2." in place(comfy, REMOVE)
    assert graph(comfy.workflow()) == before
    assert comfy.prompt() == queued
    assert "Nothing to remove" in place(comfy, REMOVE)
    undo(comfy)
    assert comfy.prompt() == placed


def test_another_model_goes_through_a_loader_behind_and_back(comfy: ComfyPage, plain: dict[str, str]) -> None:
    added = comfy.build(
        {"ControlNetLoader": {}, "ControlNetApplyAdvanced": {}, "PreviewAny": {}},
        [
            "ControlNetLoader.CONTROL_NET -> ControlNetApplyAdvanced.control_net",
            "ControlNetApplyAdvanced.positive -> PreviewAny.source",
        ],
    )
    remember(comfy)
    before, queued = graph(comfy.workflow()), comfy.prompt()
    assert "Models: 2. Loaders inserted: 2." in place(comfy)
    prompt, loader, other = comfy.prompt(), comfy.node_id(LOADER), comfy.node_id(OTHER)
    assert prompt[added["ControlNetApplyAdvanced"]]["inputs"]["control_net"] == [other, 0]
    assert prompt[other]["inputs"]["control_net"] == [added["ControlNetLoader"], 0]
    assert prompt[other]["inputs"]["placements"] == [loader, 4]
    boxes = comfy.boxes()
    assert not any(boxes[other].covers(box) for node_id, box in boxes.items() if node_id != other)
    assert "Nothing to place" in place(comfy)
    comfy.fit()
    comfy.screenshot("placed-others")
    assert "Nodes: 3." in place(comfy, REMOVE)
    assert graph(comfy.workflow()) == before
    assert comfy.prompt() == queued


def test_a_second_time_does_nothing(comfy: ComfyPage, plain: dict[str, str]) -> None:
    place(comfy)
    before = graph(comfy.workflow())
    assert "Nothing to place" in place(comfy)
    assert graph(comfy.workflow()) == before


def test_a_subgraph_is_placed_inside(comfy: ComfyPage, plain: dict[str, str], client: ComfyClient) -> None:
    outside = comfy.to_subgraph(plain["VAELoader"], plain["VAEDecode"])
    remember(comfy)
    before, queued = graph(comfy.workflow()), comfy.prompt()
    assert "Models: 1. Loaders inserted: 1." in place(comfy)
    assert comfy.node_ids(LOADER) == [], "it is in the subgraph"
    prompt = comfy.prompt()
    (loader,) = [name for name, node in prompt.items() if node["class_type"] == LOADER]
    assert loader.startswith(f"{outside}:")
    assert prompt[f"{outside}:{plain['VAEDecode']}"]["inputs"]["vae"] == [loader, 2]
    place(comfy, REMOVE)
    assert graph(comfy.workflow()) == before
    assert comfy.prompt() == queued
    undo(comfy)
    assert comfy.prompt() == prompt
    undo(comfy)
    assert comfy.prompt() == queued
    place(comfy)
    client.free()  # the same prompt of the other renderer is still there
    assert any("placement_decisions" in output for output in comfy.run().values())


def test_a_model_that_leaves_its_subgraph_is_placed_in_it(comfy: ComfyPage, plain: dict[str, str]) -> None:
    outside = comfy.to_subgraph(plain["VAELoader"])
    before = graph(comfy.workflow())
    place(comfy)
    prompt = comfy.prompt()
    (loader,) = [name for name, node in prompt.items() if node["class_type"] == LOADER]
    assert loader.startswith(f"{outside}:")
    assert prompt[plain["VAEDecode"]]["inputs"]["vae"] == [loader, 2]
    place(comfy, REMOVE)
    assert graph(comfy.workflow()) == before


def test_the_button_places_with_its_own_policy(comfy: ComfyPage, plain: dict[str, str]) -> None:
    node_id = comfy.add(POLICY)
    comfy.set_widget(node_id, "vae", "layerwise")
    inner = comfy.to_subgraph(plain["VAELoader"], plain["VAEDecode"])
    comfy.build(
        {"CLIPLoader": {}, "CLIPTextEncode": {}, "PreviewAny": {}},
        ["CLIPLoader.CLIP -> CLIPTextEncode.clip", "CLIPTextEncode.CONDITIONING -> PreviewAny.source"],
    )
    comfy.center_on(node_id)
    comfy.page.get_by_role("button", name="Place this workflow").click()
    expect(comfy.page.locator(".p-toast-message")).to_contain_text("Models: 2. Loaders inserted: 2.")
    assert comfy.node_ids(POLICY) == [node_id]
    prompt = comfy.prompt()
    assert prompt[comfy.node_id(LOADER)]["inputs"]["policy"] == [node_id, 0]
    (copy,) = [name for name, node in prompt.items() if node["class_type"] == POLICY and name != node_id]
    assert copy.startswith(f"{inner}:")
    assert prompt[copy]["inputs"] == prompt[node_id]["inputs"]


def test_a_chain_of_policies_counts_whole(comfy: ComfyPage, plain: dict[str, str]) -> None:
    chain = comfy.build(
        {POLICY: {"vae": "offload"}, OVERRIDE: {"component": "vae", "vram_budget": "1GB"}},
        [f"{POLICY}.policy -> {OVERRIDE}.base"],
    )
    comfy.to_subgraph(plain["VAELoader"], plain["VAEDecode"])
    comfy.build(
        {"CLIPLoader": {}, "CLIPTextEncode": {}, "PreviewAny": {}},
        ["CLIPLoader.CLIP -> CLIPTextEncode.clip", "CLIPTextEncode.CONDITIONING -> PreviewAny.source"],
    )
    place(comfy)
    prompt = comfy.prompt()
    assert prompt[comfy.node_id(LOADER)]["inputs"]["policy"] == [chain[OVERRIDE], 0]
    (text,) = [node["inputs"]["text"] for node in prompt.values() if node["class_type"] == LOAD]
    assert "offload" in text
    assert "1GB" in text


def test_what_cannot_be_placed_is_said(comfy: ComfyPage, plain: dict[str, str]) -> None:
    comfy.page.evaluate("id => { app.canvas.graph.getNodeById(id).mode = 4 }", plain["VAELoader"])
    said = place(comfy)
    assert "Nothing to place" in said
    assert f"Not placed: VAELoader, node {plain['VAELoader']}: it is bypassed." in said
    assert comfy.node_ids(LOADER) == []


def test_reroutes_on_a_link_stay(comfy: ComfyPage, plain: dict[str, str]) -> None:
    comfy.page.evaluate(
        """id => {
            const graph = app.canvas.graph, node = graph.getNodeById(id);
            graph.createReroute([300, 400], graph.getLink(node.inputs.find(i => i.name === "vae").link));
        }""",
        plain["VAEDecode"],
    )
    before = comfy.workflow()
    place(comfy)
    assert len(comfy.workflow()["extra"]["reroutes"]) == 1
    place(comfy, REMOVE)
    after = comfy.workflow()
    assert graph(after) == graph(before)
    reroutes = [{**one, "linkIds": len(one["linkIds"])} for one in after["extra"]["reroutes"]]
    assert reroutes == [{**one, "linkIds": len(one["linkIds"])} for one in before["extra"]["reroutes"]]


def test_it_is_in_the_palette_and_in_the_menu_of_the_canvas(comfy: ComfyPage, plain: dict[str, str]) -> None:
    labels = comfy.page.evaluate("app.extensionManager.command.commands.map(c => c.label)")
    assert {"Layerwise Offload: place this workflow", "Layerwise Offload: remove placement"} <= {
        label if isinstance(label, str) else "" for label in labels
    }
    comfy.page.mouse.click(500, 700, button="right")
    comfy.page.get_by_text("Place this workflow", exact=True).click()
    expect(comfy.page.locator(".p-toast-message")).to_contain_text("Workflow placed")


def test_it_speaks_chinese(chinese: ComfyPage) -> None:
    chinese.build(
        {"VAELoader": {}, "EmptySD3LatentImage": {}, "VAEDecode": {}, "SaveImage": {}},
        [
            "VAELoader.VAE -> VAEDecode.vae",
            "EmptySD3LatentImage.LATENT -> VAEDecode.samples",
            "VAEDecode.IMAGE -> SaveImage.images",
        ],
    )
    said = place(chinese)
    assert "工作流已放置" in said
    assert "模型：1 个" in said
    assert chinese.prompt()[chinese.node_id(LOADER)]["inputs"]["vae"]


def test_the_setting_places_what_is_queued_and_changes_nothing_that_is_open(
    comfy: ComfyPage, plain: dict[str, str]
) -> None:
    before = graph(comfy.workflow())
    comfy.set("LayerwiseOffload.Placement.EveryPrompt", True)
    try:
        outputs = comfy.run()
    finally:
        comfy.set("LayerwiseOffload.Placement.EveryPrompt", False)
    (decided,) = [told for output in outputs.values() for told in output.get("placement_decisions", [])]
    assert [row["component"] for row in decided["rows"]] == ["vae"]
    assert outputs[plain["SaveImage"]]["images"]
    assert graph(comfy.workflow()) == before
    assert comfy.node_ids(LOADER) == []
