"""The Placement Policy node: what is set, what auto became and why, and the way back to auto."""

from __future__ import annotations

from typing import Any

import pytest
from comfy_page import RENDERERS, ComfyPage
from playwright.sync_api import Locator, expect

POLICY = "LayerwiseOffload_PlacementPolicy"
OVERRIDE = "LayerwiseOffload_SetPlacement"
LOADER = "LayerwiseOffload_Loader"
LOAD = "LayerwiseOffload_LoadPolicy"
REPORT = "LayerwiseOffload_PlacementReport"
SET, AUTO = "◆", "◇"


def field(comfy: ComfyPage, name: str) -> Locator:
    """The line of the node's panel for a value that is set; another node's is `<id>:<name>`."""
    return comfy.page.locator(f".lwo-field[data-name='{name}']")


def outcome(comfy: ComfyPage, component: str) -> Locator:
    """The line of the node's panel for what came of a component."""
    return comfy.page.locator(f".lwo-outcome[data-component={component}]")


def panel(comfy: ComfyPage) -> Locator:
    """The part of the node that tells."""
    return comfy.page.get_by_role("region", name="What is set, and what came of it in the last run")


def labels(comfy: ComfyPage, node_id: str) -> dict[str, str]:
    """What the node's widgets are called on the canvas."""
    return comfy.page.evaluate(
        """id => Object.fromEntries(app.canvas.graph.getNodeById(id).widgets
            .filter(w => w.label).map(w => [w.name, w.label]))""",
        node_id,
    )


def shown(comfy: ComfyPage, node_id: str, name: str) -> str:
    """The value that a combo shows, as it is drawn."""
    if RENDERERS[comfy.renderer]:
        return comfy.page.locator(
            f"[data-node-id='{node_id}'] [role=combobox][aria-label$=' {name}']"
        ).inner_text()
    return comfy.page.evaluate(
        "([id, name]) => app.canvas.graph.getNodeById(id).widgets.find(w => w.name === name)._displayValue",
        [node_id, name],
    )


@pytest.fixture
def ran(comfy: ComfyPage, decoding: dict[str, str]) -> dict[str, str]:
    """The small graph with an automatic VAE, after a run, with the policy node in the middle."""
    set_widget(comfy, decoding[POLICY], "vae", "auto")
    set_widget(comfy, decoding[POLICY], "vram_budget", "auto")
    comfy.run()
    comfy.center_on(decoding[POLICY])
    return decoding


def set_widget(comfy: ComfyPage, node_id: str, name: str, value: str) -> None:
    """Choose a value, with all that follows from it."""
    comfy.page.evaluate(
        """([id, name, value]) => {
            const node = app.canvas.graph.getNodeById(id), widget = node.widgets.find(w => w.name === name);
            widget.value = value;
            widget.callback?.(value, app.canvas, node);
        }""",
        [node_id, name, value],
    )
    comfy.frames()


def test_what_is_set_looks_different_without_colour(comfy: ComfyPage) -> None:
    node_id = comfy.add(POLICY)
    assert set(label[0] for label in labels(comfy, node_id).values()) == {AUTO}
    set_widget(comfy, node_id, "vae", "resident")
    expect(field(comfy, "vae")).to_contain_text(f"{SET}vae: resident")
    expect(field(comfy, "vae").get_by_label("set", exact=True)).to_be_visible()
    found = labels(comfy, node_id)
    assert (found["vae"][0], found["mode"][0]) == (SET, AUTO)
    if RENDERERS[comfy.renderer]:
        expect(comfy.page.get_by_role("combobox", name=f"{SET} vae")).to_be_visible()


def test_the_marks_are_no_part_of_the_workflow(comfy: ComfyPage) -> None:
    comfy.add(POLICY)
    comfy.add(OVERRIDE)
    for written in (str(comfy.workflow()), str(comfy.prompt())):
        assert SET not in written
        assert AUTO not in written
        assert "layerwise_offload_policy" not in written


def test_the_panel_lists_only_what_is_set(comfy: ComfyPage) -> None:
    """The widgets above it show the rest."""
    node_id = comfy.add(POLICY)
    expect(panel(comfy)).to_contain_text("Nothing: everything is decided automatically.")
    expect(panel(comfy)).to_contain_text("Run the workflow to see what auto becomes.")
    for name, value in {"strict": "on", "vae": "cpu"}.items():
        set_widget(comfy, node_id, name, value)
    lines = comfy.page.locator(".lwo-field")
    expect(lines).to_have_text([f"{SET}vae: cpuReset", f"{SET}strict: onReset"])
    expect(panel(comfy)).not_to_contain_text("Nothing:")


def test_the_panel_names_the_nodes_that_set_the_rest_of_its_chain(comfy: ComfyPage) -> None:
    ids = comfy.build(
        {
            LOAD: {"text": "components:\n  vae: cpu\n"},
            POLICY: {"mode": "speed"},
            OVERRIDE: {"component": "text_encoder_2", "placement": "cpu", "vram_budget": "1GB"},
        },
        [f"{LOAD}.policy -> {POLICY}.base", f"{POLICY}.policy -> {OVERRIDE}.base"],
    )
    comfy.center_on(ids[POLICY])
    set_widget(comfy, ids[POLICY], "mode", "memory")
    expect(comfy.page.locator(".lwo-field")).to_have_text(
        [
            f"{SET}mode: memoryReset",
            f"{SET}text: components: … (Load Placement Policy, node {ids[LOAD]})",
            f"{SET}text_encoder_2: cpu (Set Placement, node {ids[OVERRIDE]})",
            f"{SET}text_encoder_2, vram_budget: 1GB (Set Placement, node {ids[OVERRIDE]})",
        ]
    )


def test_after_a_run_auto_shows_what_it_became_and_why(comfy: ComfyPage, ran: dict[str, str]) -> None:
    expect(outcome(comfy, "vae")).to_contain_text(f"{AUTO}vae → resident")
    assert shown(comfy, ran[POLICY], "vae") == "auto → resident"
    assert comfy.prompt()[ran[POLICY]]["inputs"]["vae"] == "auto"
    why = outcome(comfy, "vae").locator(".lwo-why")
    expect(why).to_be_hidden()
    outcome(comfy, "vae").locator("summary").focus()
    comfy.page.keyboard.press("Enter")
    expect(why).to_be_visible()
    expect(why).to_contain_text("vae → resident: ")
    expect(outcome(comfy, "vae").locator("details")).to_have_attribute("title", why.inner_text())
    expect(comfy.page.locator(".lwo-outcome")).to_have_count(1)


def test_a_setting_that_the_browser_has_no_words_for_is_listed_too(
    comfy: ComfyPage, ran: dict[str, str]
) -> None:
    comfy.page.evaluate(
        """id => app.canvas.graph.getNodeById(id)
            .addWidget("combo", "haste", "on", () => {}, { values: ["auto", "on"] })""",
        ran[POLICY],
    )
    set_widget(comfy, ran[POLICY], "vae", "auto")  # whatever changes, the panel is painted again
    expect(field(comfy, "haste")).to_contain_text(f"{SET}haste: on")


def test_a_cached_run_in_a_new_tab_tells_it_too(comfy: ComfyPage, ran: dict[str, str]) -> None:
    """There, the report alone is executed again; nothing of the loader arrives."""
    comfy.page.evaluate("app.nodeOutputs = {}")
    expect(outcome(comfy, "vae")).to_have_count(0)
    comfy.run()
    expect(outcome(comfy, "vae")).to_contain_text("vae → resident")


def test_without_a_report_the_loader_tells_it(comfy: ComfyPage, decoding: dict[str, str]) -> None:
    comfy.page.evaluate("id => app.canvas.graph.remove(app.canvas.graph.getNodeById(id))", decoding[REPORT])
    set_widget(comfy, decoding[POLICY], "vae", "auto")
    comfy.run()
    comfy.center_on(decoding[POLICY])
    expect(outcome(comfy, "vae")).to_contain_text("vae → resident")


def test_a_reloaded_page_shows_the_last_run(comfy: ComfyPage, ran: dict[str, str]) -> None:
    workflow = comfy.workflow()
    comfy.page.evaluate("app.nodeOutputs = {}")
    comfy.open()
    comfy.load(workflow)
    comfy.center_on(ran[POLICY])
    expect(outcome(comfy, "vae")).to_contain_text("vae → resident")
    comfy.center_on(ran[REPORT])
    expect(comfy.page.locator("[data-component=vae] .lwo-chip")).to_be_visible()


def test_what_auto_became_is_forgotten_when_the_value_was_another(
    comfy: ComfyPage, ran: dict[str, str]
) -> None:
    set_widget(comfy, ran[POLICY], "vae", "layerwise")
    comfy.run()
    expect(field(comfy, "vae")).to_contain_text(f"{SET}vae: layerwise")
    expect(panel(comfy)).not_to_contain_text("Values have changed since then.")
    field(comfy, "vae").get_by_role("button").click()
    expect(field(comfy, "vae")).to_have_count(0)
    expect(panel(comfy)).to_contain_text("Values have changed since then.")
    assert shown(comfy, ran[POLICY], "vae") == "auto"


def test_a_later_override_shows_on_the_policy_node(comfy: ComfyPage, ran: dict[str, str]) -> None:
    comfy.page.evaluate(
        """([policy, loader, kind]) => {
            const graph = app.canvas.graph, node = LiteGraph.createNode(kind);
            graph.add(node);
            node.widgets.find(w => w.name === "component").value = "all";
            node.widgets.find(w => w.name === "placement").value = "layerwise";
            graph.getNodeById(policy).connect(0, node, "base");
            node.connect(0, graph.getNodeById(loader), "policy");
        }""",
        [ran[POLICY], ran[LOADER], OVERRIDE],
    )
    comfy.run()
    comfy.center_on(ran[POLICY])
    expect(outcome(comfy, "vae")).to_contain_text(f"{SET}vae → layerwise")
    expect(outcome(comfy, "vae").locator("details")).to_have_attribute(
        "title", "vae → layerwise: layerwise was set by Set Placement, node 8."
    )


def test_a_field_and_then_all_go_back_to_auto_each_in_one_step(comfy: ComfyPage) -> None:
    node_id = comfy.add(POLICY)
    before = comfy.widgets(node_id)
    for name, value in {"vae": "cpu", "mode": "speed", "vram_budget": "6GB"}.items():
        set_widget(comfy, node_id, name, value)
    comfy.page.mouse.click(20, 500)
    comfy.page.get_by_role("button", name="Reset vae to auto").click()
    assert comfy.widgets(node_id) == before | {"mode": "speed", "vram_budget": "6GB"}
    everything = comfy.page.get_by_role("button", name="Reset all to auto")
    everything.click()
    assert comfy.widgets(node_id) == before
    expect(everything).to_be_disabled()
    comfy.command("Comfy.Undo")
    comfy.frames(5)
    assert comfy.widgets(node_id) == before | {"mode": "speed", "vram_budget": "6GB"}


def test_a_reset_by_the_keyboard_keeps_the_focus_near(comfy: ComfyPage) -> None:
    node_id = comfy.add(POLICY)
    for name, value in {"vae": "cpu", "mode": "speed", "vram_budget": "6GB"}.items():
        set_widget(comfy, node_id, name, value)
    comfy.page.get_by_role("button", name="Reset vae to auto").focus()
    for following in ("vram_budget", "mode"):
        comfy.page.keyboard.press("Enter")
        expect(comfy.page.get_by_role("button", name=f"Reset {following} to auto")).to_be_focused()
    comfy.page.keyboard.press("Enter")
    expect(panel(comfy)).to_be_focused()
    set_widget(comfy, node_id, "vae", "cpu")
    comfy.page.get_by_role("button", name="Reset all to auto").focus()
    comfy.page.keyboard.press("Enter")
    expect(panel(comfy)).to_be_focused()
    assert set(comfy.widgets(node_id).values()) == {"auto"}


@pytest.mark.parametrize("width", [225, 380])
def test_its_buttons_stay_inside_of_a_narrow_node(comfy: ComfyPage, width: int) -> None:
    node_id = comfy.add(POLICY)
    comfy.page.evaluate(
        "([id, width]) => { const node = app.canvas.graph.getNodeById(id); node.setSize([width, node.size[1]]) }",
        [node_id, width],
    )
    comfy.center_on(node_id)
    comfy.frames(5)
    comfy.screenshot(f"policy-node-{width}-wide")
    node = comfy.boxes()[node_id]
    buttons = comfy.page.locator(".lwo-actions .lwo-button").evaluate_all(
        """all => all.map(one => {
            const box = one.getBoundingClientRect();
            return [app.clientPosToCanvasPos([box.left, 0])[0], app.clientPosToCanvasPos([box.right, 0])[0]];
        })"""
    )
    assert len(buttons) == 5
    assert all(node.left <= left < right <= node.right for left, right in buttons)


def test_what_few_need_is_hidden_until_it_is_asked_for(comfy: ComfyPage) -> None:
    """In Nodes 2.0, which has a button for that; what is set there is seen in the panel all the same."""
    node_id = comfy.add(POLICY)
    set_widget(comfy, node_id, "strict", "on")
    expect(field(comfy, "strict")).to_contain_text(f"{SET}strict: on")
    assert comfy.prompt()[node_id]["inputs"]["strict"] == "on"
    if RENDERERS[comfy.renderer]:
        strict = comfy.page.locator(f"[data-node-id='{node_id}'] [role=combobox][aria-label$=' strict']")
        expect(strict).to_have_count(0)
        comfy.page.get_by_text("Show advanced inputs").click()
        expect(strict).to_be_visible()


def test_a_linked_value_counts_as_set_and_is_left_alone(comfy: ComfyPage) -> None:
    ids = comfy.build(
        {"PrimitiveString": {"value": "6GB"}, POLICY: {"mode": "speed"}},
        [f"PrimitiveString.STRING -> {POLICY}.vram_budget"],
    )
    comfy.center_on(ids[POLICY])
    expect(field(comfy, "vram_budget")).to_contain_text(f"{SET}vram_budget: linked")
    expect(field(comfy, "vram_budget").get_by_role("button")).to_have_count(0)
    comfy.page.get_by_role("button", name="Copy as YAML").click()
    expect(comfy.page.get_by_text("vram_budget of node 2 is linked")).to_be_visible()


def test_copy_as_yaml_copies_the_chain(comfy: ComfyPage) -> None:
    comfy.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    ids = comfy.build(
        {POLICY: {"vae": "resident"}, OVERRIDE: {"component": "text_encoder_2", "placement": "cpu"}},
        [f"{POLICY}.policy -> {OVERRIDE}.base"],
    )
    comfy.center_on(ids[POLICY])
    comfy.page.get_by_role("button", name="Copy as YAML").click()
    expect(comfy.page.get_by_text("Policy copied as YAML").last).to_be_visible()
    text = comfy.page.evaluate("navigator.clipboard.readText()")
    assert "text_encoder_2: cpu  # Set Placement, node 2" in text
    assert "vae: resident  # Placement Policy, node 1" in text


def test_a_change_of_the_graph_repaints_only_what_it_changes(comfy: ComfyPage) -> None:
    """Nodes 2.0 draws a node again for each label that is written, and a graph may hold fifty of these nodes."""
    first, *others = (comfy.add(kind) for kind in (OVERRIDE, OVERRIDE, OVERRIDE, POLICY))
    bystander = comfy.add("EmptySD3LatentImage")
    comfy.frames(10)
    comfy.page.evaluate(COUNT_LABELS)
    step(comfy, bystander, "width", 512)
    assert written(comfy) == []
    step(comfy, first, "placement", "cpu")
    assert set(written(comfy)) == {first}
    assert {labels(comfy, other)["vram_budget"][0] for other in others} == {AUTO}
    assert labels(comfy, first)["placement"][0] == SET


def step(comfy: ComfyPage, node_id: str, name: str, value: Any) -> None:
    """Choose a value in a step that can be undone, and wait until everybody has heard of it."""
    comfy.page.evaluate(
        """async ([id, name, value]) => {
            const heard = new Promise(done => app.api.addEventListener("graphChanged", done, { once: true }));
            app.canvas.emitBeforeChange();
            const node = app.canvas.graph.getNodeById(id), widget = node.widgets.find(w => w.name === name);
            widget.value = value;
            widget.callback?.(value, app.canvas, node);
            app.canvas.emitAfterChange();
            await heard;
        }""",
        [node_id, name, value],
    )
    comfy.frames(5)


def written(comfy: ComfyPage) -> list[str]:
    """The nodes of those labels that were written since the last look."""
    return comfy.page.evaluate("globalThis.writtenLabels.splice(0)")


COUNT_LABELS = """() => {
    globalThis.writtenLabels = [];
    for (const node of app.canvas.graph.nodes) for (const widget of node.widgets) {
        const ofOwner = owner => owner &&
            (Object.getOwnPropertyDescriptor(owner, "label") ?? ofOwner(Object.getPrototypeOf(owner)));
        const known = ofOwner(widget);
        let plain = widget.label;
        Object.defineProperty(widget, "label", {
            configurable: true,
            get: () => known?.get ? known.get.call(widget) : plain,
            set: (label) => {
                globalThis.writtenLabels.push(String(node.id));
                known?.set ? known.set.call(widget, label) : (plain = label);
            },
        });
    }
}"""


def test_the_wheel_over_the_panel_zooms_the_canvas(comfy: ComfyPage) -> None:
    comfy.add(POLICY)
    before = comfy.page.evaluate("app.canvas.ds.scale")
    panel(comfy).hover()
    comfy.page.mouse.wheel(0, -120)
    comfy.page.wait_for_function("before => app.canvas.ds.scale > before", arg=before)


@pytest.mark.parametrize("palette", ["dark", "light"])
@pytest.mark.parametrize("scale", [0.8, 1.5])
def test_the_panel_is_readable(comfy: ComfyPage, ran: dict[str, str], palette: str, scale: float) -> None:
    """Every line is inside the panel, and its text stands out from the ground as WCAG AA asks."""
    set_widget(comfy, ran[POLICY], "mode", "memory")
    comfy.set("Comfy.ColorPalette", palette)
    try:
        comfy.page.evaluate(
            """([scale, id]) => {
                app.canvas.ds.scale = scale;
                app.canvas.centerOnNode(app.canvas.graph.getNodeById(id));
            }""",
            [scale, ran[POLICY]],
        )
        comfy.frames(10)
        comfy.screenshot(f"policy-node-{palette}-{int(scale * 100)}")
        found: dict[str, Any] = comfy.page.evaluate(MEASURE)
    finally:
        comfy.set("Comfy.ColorPalette", "dark")
    assert found["contrast"] >= 4.5
    assert found["cut"] == []


MEASURE = """() => {
    const list = document.querySelector(".lwo-fields"), box = list.getBoundingClientRect();
    const context = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    const luminance = (colour) => {
        context.clearRect(0, 0, 1, 1);
        context.fillStyle = colour;
        context.fillRect(0, 0, 1, 1);
        const parts = [...context.getImageData(0, 0, 1, 1).data].slice(0, 3).map(v => v / 255)
            .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
    };
    const ground = luminance(getComputedStyle(list).backgroundColor);
    const contrasts = [...list.querySelectorAll(".lwo-said, .lwo-quiet, h4")]
        .map(e => luminance(getComputedStyle(e).color))
        .map(l => (Math.max(l, ground) + 0.05) / (Math.min(l, ground) + 0.05));
    const cut = [...list.querySelectorAll("h4, p, li")].filter(e => e.offsetParent)
        .filter(e => e.getBoundingClientRect().bottom > box.bottom + 1)
        .map(e => e.textContent);
    return { contrast: Math.min(...contrasts), cut };
}"""
