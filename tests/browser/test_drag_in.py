"""Policy files that are dragged into the browser, or chosen with a button, become nodes; other files are ComfyUI's."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from comfy_page import ComfyPage
from playwright.sync_api import expect

from offload_runtime.policy import Policy, Source, SourceKind
from offload_runtime.policy.files import parse_policy
from scripts.places import ROOT

POLICY = "LayerwiseOffload_PlacementPolicy"
OVERRIDE = "LayerwiseOffload_SetPlacement"
LOADER = "LayerwiseOffload_Loader"
EXAMPLES = sorted((ROOT / "example_policies").glob("*.offload.*"))
EMPTY = (500.0, 300.0)
SMALL_CARD = "components: {text_encoder: {placement: layerwise, vram_budget: 1GB}, vae: resident}"


def dropped(
    comfy: ComfyPage, content: str | bytes, at: tuple[float, float] = EMPTY, name: str = "a.offload.yaml"
) -> None:
    """Drop a policy file, and wait for what ComfyUI says to it."""
    comfy.page.evaluate("app.extensionManager.toast.removeAll()")
    expect(toast(comfy)).to_have_count(0)
    comfy.drop({name: content}, at)
    expect(toast(comfy)).to_have_count(1)


def toast(comfy: ComfyPage) -> Any:
    """What ComfyUI says; not what it is fading out."""
    return comfy.page.locator(".p-toast-message:not(.p-toast-message-leave-active)")


def chain(comfy: ComfyPage) -> list[dict[str, Any]]:
    """The explicit values of the nodes, from the policy node to the last override."""
    prompt = comfy.prompt()
    (node_id,) = (i for i, node in prompt.items() if node["class_type"] == POLICY)
    found = []
    while node_id is not None:
        inputs = prompt[node_id]["inputs"]
        found.append({name: v for name, v in inputs.items() if name != "base" and v != "auto"})
        after = [i for i, node in prompt.items() if node["inputs"].get("base") == [node_id, 0]]
        node_id = after[0] if after else None
    return found


def saved(comfy: ComfyPage) -> Policy:
    """What the Save button writes."""
    with comfy.page.expect_download() as download:
        comfy.page.get_by_role("button", name="Save policy file…").click()
    assert download.value.suggested_filename.endswith(".offload.yaml")
    return parse_policy(Path(download.value.path()).read_bytes(), Source(SourceKind.FILE, "file"))


def undo_steps(comfy: ComfyPage) -> int:
    return comfy.page.evaluate("app.extensionManager.workflow.activeWorkflow.changeTracker.undoQueue.length")


def undo(comfy: ComfyPage) -> None:
    comfy.command("Comfy.Undo")
    comfy.frames(5)


def test_a_file_on_the_empty_canvas_becomes_a_chain_at_the_pointer(comfy: ComfyPage) -> None:
    dropped(comfy, SMALL_CARD)
    assert chain(comfy) == [
        {"text_encoder": "layerwise", "vae": "resident"},
        {"component": "text_encoder", "vram_budget": "1GB"},
    ]
    corner = comfy.page.evaluate(
        "id => { const p = app.canvasPosToClientPos(app.canvas.graph.getNodeById(id).pos); return [p[0], p[1]] }",
        comfy.node_id(POLICY),
    )
    assert corner == pytest.approx(EMPTY, abs=2)


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_a_file_survives_the_way_through_the_browser(comfy: ComfyPage, file: Path) -> None:
    dropped(comfy, file.read_bytes(), name=file.name)
    expected = parse_policy(file.read_bytes(), Source(SourceKind.FILE, "file"))
    comfy.center_on(comfy.node_id(POLICY))
    assert saved(comfy).effective() == expected.effective()


def test_a_drop_is_one_step_of_undo(comfy: ComfyPage) -> None:
    before = undo_steps(comfy)
    dropped(comfy, SMALL_CARD)
    assert undo_steps(comfy) == before + 1
    undo(comfy)
    assert comfy.workflow()["nodes"] == []
    comfy.command("Comfy.Redo")
    comfy.frames(5)
    assert chain(comfy)[0]["text_encoder"] == "layerwise"


def test_a_file_on_a_policy_node_fills_it_and_grows_its_chain(comfy: ComfyPage) -> None:
    ids = comfy.build(
        {POLICY: {"mode": "speed", "vae": "cpu"}, LOADER: {}}, [f"{POLICY}.policy -> {LOADER}.policy"]
    )
    comfy.page.mouse.move(10, 10)
    before = undo_steps(comfy)
    dropped(comfy, SMALL_CARD, comfy.title_of(ids[POLICY]))
    assert comfy.node_id(POLICY) == ids[POLICY]
    assert comfy.widgets(ids[POLICY])["mode"] == "auto", "what the file leaves open is auto again"
    (override,) = comfy.node_ids(OVERRIDE)
    workflow = comfy.workflow()
    links = {(str(link[1]), str(link[3])) for link in workflow["links"]}
    assert links == {(ids[POLICY], override), (override, ids[LOADER])}
    assert undo_steps(comfy) == before + 1


def test_a_file_on_the_panel_of_a_policy_node_fills_it_too(comfy: ComfyPage) -> None:
    node_id = comfy.add(POLICY)
    box = comfy.page.get_by_role("button", name="Copy as YAML").bounding_box()
    assert box is not None
    dropped(comfy, "components: {vae: cpu}", (box["x"] + 5, box["y"] + 5))
    assert comfy.node_ids(POLICY) == [node_id]
    assert comfy.widgets(node_id)["vae"] == "cpu"


def test_a_second_file_fills_the_overrides_that_are_there(comfy: ComfyPage) -> None:
    dropped(comfy, SMALL_CARD)
    title = comfy.title_of(comfy.node_id(POLICY))
    dropped(comfy, "components: {text_encoder: {host: staged}, all: {vram_budget: 2GB}}", title)
    assert chain(comfy) == [
        {},
        {"component": "all", "vram_budget": "2GB"},
        {"component": "text_encoder", "host": "staged"},
    ]


BEFORE = """
components: {text_encoder: {vram_budget: 1GB}, text_encoder_2: cpu, vae: {vram_budget: 2GB}}
"""
AFTER = "components: {dit: {vram_budget: 3GB}, text_encoder_2: layerwise}"


@pytest.fixture
def question(comfy: ComfyPage) -> Any:
    """What the page asks after a file for a chain with overrides that the file does not have."""
    ids = comfy.build({POLICY: {}, LOADER: {}}, [f"{POLICY}.policy -> {LOADER}.policy"])
    comfy.center_on(ids[POLICY])
    dropped(comfy, BEFORE, comfy.title_of(ids[POLICY]))
    dropped(comfy, AFTER, comfy.title_of(ids[POLICY]))
    return comfy.page.get_by_role("dialog")


def test_overrides_that_a_second_file_does_not_have_are_removed_on_request(
    comfy: ComfyPage, question: Any
) -> None:
    for component in ("text_encoder", "vae"):
        expect(question).to_contain_text(f"Set Placement for {component}, node ")
    steps = undo_steps(comfy)
    comfy.screenshot("second-file-question")
    question.get_by_role("button", name="Delete").click()
    expect(question).to_have_count(0)
    asked = [
        {},
        {"component": "dit", "vram_budget": "3GB"},
        {"component": "text_encoder_2", "placement": "layerwise"},
    ]
    assert chain(comfy) == asked
    prompt = comfy.prompt()
    (loader,) = (node for node in prompt.values() if node["class_type"] == LOADER)
    assert prompt[loader["inputs"]["policy"][0]]["inputs"]["component"] == "text_encoder_2"
    assert undo_steps(comfy) == steps + 1
    undo(comfy)
    assert len(chain(comfy)) == 5


def test_overrides_that_a_second_file_does_not_have_stay_without_it(comfy: ComfyPage, question: Any) -> None:
    question.get_by_role("button", name="Cancel").click()
    expect(toast(comfy).last).to_contain_text("Set Placement for text_encoder, node ")
    assert [override["component"] for override in chain(comfy)[1:]] == [
        "dit",
        "text_encoder",
        "vae",
        "text_encoder_2",
    ]


def test_nodes_that_a_file_adds_cover_none_that_was_there(comfy: ComfyPage, question: Any) -> None:
    question.get_by_role("button", name="Cancel").click()
    comfy.fit()
    boxes = comfy.boxes()
    assert len(boxes) == 6
    ours = comfy.node_ids(OVERRIDE)
    pairs = itertools.combinations(boxes, 2)
    assert [pair for pair in pairs if set(pair) & set(ours) and boxes[pair[0]].covers(boxes[pair[1]])] == []


def test_a_bypassed_override_stays_as_it_is(comfy: ComfyPage) -> None:
    dropped(comfy, SMALL_CARD)
    comfy.page.evaluate("id => { app.canvas.graph.getNodeById(id).mode = 4 }", comfy.node_id(OVERRIDE))
    dropped(comfy, SMALL_CARD.replace("1GB", "2GB"), comfy.title_of(comfy.node_id(POLICY)))
    assert chain(comfy)[1:] == [{"component": "text_encoder", "vram_budget": "2GB"}]
    assert {comfy.widgets(i)["vram_budget"] for i in comfy.node_ids(OVERRIDE)} == {"1GB", "2GB"}


def test_an_undo_and_another_file_still_reach_the_node_that_is_shown(comfy: ComfyPage) -> None:
    """After an undo the nodes are new ones with the old ids, and Nodes 2.0 keeps showing what it has."""
    dropped(comfy, SMALL_CARD)
    node_id = comfy.node_id(POLICY)
    dropped(comfy, "components: {vae: cpu}", comfy.title_of(node_id))
    comfy.page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    undo(comfy)
    comfy.center_on(node_id)
    comfy.page.get_by_role("button", name="Reset vae to auto").click()
    assert chain(comfy)[0] == {"text_encoder": "layerwise"}


def test_in_a_subgraph_the_chain_grows_in_front_of_its_output(comfy: ComfyPage) -> None:
    comfy.build({POLICY: {}, LOADER: {}}, [f"{POLICY}.policy -> {LOADER}.policy"])
    comfy.page.evaluate(
        """type => {
            const { graph } = app.canvas;
            const { node } = graph.convertToSubgraph(new Set(graph.nodes.filter(n => n.type === type)));
            app.canvas.setGraph(node.subgraph);
        }""",
        POLICY,
    )
    comfy.frames(5)
    dropped(comfy, SMALL_CARD, comfy.title_of(comfy.node_id(POLICY)))
    prompt = comfy.prompt()
    (loader,) = (node for node in prompt.values() if node["class_type"] == LOADER)
    override = prompt[loader["inputs"]["policy"][0]]
    assert override["inputs"]["component"] == "text_encoder"
    assert prompt[override["inputs"]["base"][0]]["inputs"]["vae"] == "resident"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("components:\n  text_encoder: layerwize\n", "a.offload.yaml, line 2, column 17"),
        (b"mode: \xff", "line 1, column 7: the file is not UTF-8 text"),
        (json.dumps({"nodes": [], "links": []}), "line 1, column 2: there is no key “nodes”"),
    ],
)
def test_a_file_with_a_mistake_changes_nothing_and_says_where(
    comfy: ComfyPage, content: str | bytes, message: str
) -> None:
    node_id = comfy.add(POLICY)
    dropped(comfy, content, (200, 700))
    expect(toast(comfy)).to_contain_text(message)
    dropped(comfy, content, comfy.title_of(node_id))
    expect(toast(comfy)).to_contain_text(message)
    assert [str(node["id"]) for node in comfy.workflow()["nodes"]] == [node_id]


def test_the_load_button_does_the_same_by_keyboard(comfy: ComfyPage) -> None:
    node_id = comfy.add(POLICY)
    button = comfy.page.get_by_role("button", name="Load policy file…")
    button.focus()
    # Chromium hands dialogs over from the first listener on, but not at once.
    comfy.page.once("filechooser", lambda _: None)
    comfy.frames()
    with comfy.page.expect_file_chooser() as chooser:
        comfy.page.keyboard.press("Enter")
    chooser.value.set_files([{"name": "my.offload.yaml", "mimeType": "", "buffer": SMALL_CARD.encode()}])
    expect(toast(comfy)).to_contain_text("my.offload.yaml")
    assert comfy.widgets(node_id)["vae"] == "resident"
    assert len(chain(comfy)) == 2


def test_the_command_needs_no_node(comfy: ComfyPage) -> None:
    comfy.page.once("filechooser", lambda _: None)
    comfy.frames()
    with comfy.page.expect_file_chooser() as chooser:
        comfy.page.evaluate(
            "() => void app.extensionManager.command.execute('LayerwiseOffload.LoadPolicyFile')"
        )
    chooser.value.set_files([{"name": "my.offload.yaml", "mimeType": "", "buffer": SMALL_CARD.encode()}])
    expect(toast(comfy)).to_contain_text("my.offload.yaml")
    assert len(chain(comfy)) == 2


def test_two_files_become_two_chains_that_do_not_cover_each_other(comfy: ComfyPage) -> None:
    comfy.drop({"a.offload.yaml": SMALL_CARD, "b.offload.json": '{"mode": "speed"}'}, (300, 150))
    comfy.page.wait_for_function("app.canvas.graph.nodes.length === 3")
    first, second = (comfy.page.evaluate(BOX, node_id) for node_id in comfy.node_ids(POLICY))
    assert first["bottom"] < second["top"]


BOX = """id => {
    const { pos, size } = app.canvas.graph.getNodeById(id);
    return { top: pos[1] - 30, bottom: pos[1] + size[1] };
}"""


RENAMED = [
    "policy.offload (1).yaml",
    "policy.offload copy.yml",
    "policy.offload(2).json",
    "policy.offload - 副本.yaml",
]


@pytest.mark.parametrize("name", RENAMED)
def test_a_file_that_the_browser_or_the_system_has_renamed_is_still_ours(comfy: ComfyPage, name: str) -> None:
    dropped(comfy, '{"mode": "speed"}', name=name)
    assert chain(comfy) == [{"mode": "speed"}]


@pytest.mark.parametrize("name", ["policy.yaml", "policy (1).yml", "policy.json"])
def test_on_the_node_itself_a_policy_needs_no_name(comfy: ComfyPage, name: str) -> None:
    node_id = comfy.add(POLICY)
    dropped(comfy, '{"mode": "speed"}', comfy.title_of(node_id), name)
    assert chain(comfy) == [{"mode": "speed"}]
    assert comfy.node_id(POLICY) == node_id


def test_of_several_files_on_a_node_the_first_counts_and_that_is_said(comfy: ComfyPage) -> None:
    node_id = comfy.add(POLICY)
    files = {"one.yaml": "mode: speed", "two.offload.yaml": "mode: memory", "three.json": "{}"}
    comfy.drop(files, comfy.title_of(node_id))
    expect(toast(comfy)).to_contain_text("two.offload.yaml, three.json")
    assert chain(comfy) == [{"mode": "speed"}]


def test_other_files_on_the_canvas_are_left_to_comfyui(comfy: ComfyPage) -> None:
    comfy.drop({"other.yaml": "mode: auto"}, EMPTY)
    expect(toast(comfy)).to_contain_text("other.yaml")
    assert comfy.workflow()["nodes"] == []


@pytest.mark.parametrize("kind", ["workflow", "prompt"])
def test_a_workflow_that_is_dropped_on_the_node_is_opened(comfy: ComfyPage, kind: str) -> None:
    comfy.build({"EmptySD3LatentImage": {}, "SaveImage": {}}, [])
    sent = comfy.workflow() if kind == "workflow" else comfy.prompt()
    comfy.reset()
    node_id = comfy.add(POLICY)
    comfy.drop({"workflow.json": json.dumps(sent)}, comfy.title_of(node_id))
    comfy.page.wait_for_function("app.canvas.graph.nodes.length === 2")
    assert comfy.node_ids(POLICY) == []


def test_a_policy_is_saved_under_the_name_of_the_workflow(comfy: ComfyPage) -> None:
    comfy.build({POLICY: {}}, [])
    sent = comfy.workflow()
    comfy.reset()
    comfy.drop({"my flux.json": json.dumps(sent)}, EMPTY)
    comfy.page.wait_for_function("app.canvas.graph.nodes.length === 1")
    comfy.center_on(comfy.node_id(POLICY))
    with comfy.page.expect_download() as download:
        comfy.page.get_by_role("button", name="Save policy file…").click()
    assert download.value.suggested_filename == "my flux.offload.yaml"


@pytest.mark.parametrize("content", ["", "# nothing yet\n", "components:\n"])
def test_a_file_that_sets_nothing_says_so(comfy: ComfyPage, content: str) -> None:
    dropped(comfy, content)
    expect(toast(comfy)).to_contain_text("The policy file sets nothing")
    expect(toast(comfy)).to_contain_text("a.offload.yaml holds no value")
    expect(toast(comfy)).not_to_contain_text("Policy loaded")
