"""ComfyUI's frontend in a browser tab, as a person uses it: open a workflow, run it, drop a file, read a node."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from playwright.sync_api import ConsoleMessage, Error, Page, Request, expect
from playwright.sync_api import TimeoutError as PlaywrightTimeout

from scripts.comfy_client import Prompt
from scripts.places import ROOT

SCREENSHOTS = ROOT / "browser_output"
VIEWPORT = {"width": 1600, "height": 900}
RENDERERS = {"litegraph": False, "nodes2": True}
"""Name of the renderer → ComfyUI's setting `Comfy.VueNodes.Enabled`."""

# Of a bypassed node the frontend says which socket types it cannot pass on.
OURS = re.compile(r"(?i:layerwise)(?!_(?:POLICY|PLACEMENTS|REPORT)\b)")
# Code of the frontend's own that cannot reach the outside (or is forbidden to, by ComfyUI's content policy).
FRONTENDS_OWN = re.compile(r"Failed to fetch|NetworkError|Load failed")
# Older frontends look every node type up in ComfyUI's registry, and name it when that is forbidden.
REGISTRY = "https://api.comfy.org/comfy-nodes/"


class Box(NamedTuple):
    """The edges of a rectangle."""

    left: float
    top: float
    right: float
    bottom: float

    def covers(self, other: Box) -> bool:
        """Whether the two have an area in common."""
        return (
            self.left < other.right
            and other.left < self.right
            and self.top < other.bottom
            and other.top < self.bottom
        )


class ComfyPage:
    """One tab. `page` is Playwright's, for locators; `errors` is what must stay empty.

    Positions are client coordinates of the tab, in CSS pixels.
    """

    def __init__(self, page: Page, url: str, renderer: str) -> None:
        self.page, self.url, self.renderer = page, url, renderer
        self.errors: list[str] = []
        self.requests_outside: list[str] = []
        page.on("pageerror", self._on_page_error)
        page.on("console", self._on_console)
        page.on("request", self._on_request)

    def open(self, **more_settings: Any) -> None:
        """Go to the server's page, in this tab's renderer, and wait for ComfyUI's own first workflow."""
        settings = {
            "Comfy.VueNodes.Enabled": RENDERERS[self.renderer],
            "Comfy.TutorialCompleted": True,
            "Comfy.RightSidePanel.IsOpen": False,
            "Comfy.Locale": "en",
            **more_settings,
        }
        for name, value in settings.items():
            self.page.request.post(f"{self.url}/settings/{name}", data=json.dumps(value))
        self.page.goto(self.url)
        # Its opening is the last thing that happens.
        self.page.wait_for_function("window.app?.extensionManager?.workflow?.activeWorkflow?.activeState")

    def reset(self) -> None:
        """Back to one empty canvas at 100 %, without notices; much faster than opening the page again."""
        self.page.mouse.move(VIEWPORT["width"] / 2, VIEWPORT["height"] - 5)
        self.page.keyboard.press("Escape")
        self.page.evaluate(
            """async () => {
                const { command, toast, workflow } = app.extensionManager;
                await command.execute("Comfy.NewBlankWorkflow");
                for (const other of [...workflow.openWorkflows]) {
                    if (other !== workflow.activeWorkflow) await workflow.closeWorkflow(other);
                }
                (toast.removeAll ?? toast.dismissAll)();  // newer frontends have the latter
                app.canvas.ds.reset();
                app.canvas.setDirty(true, true);
            }"""
        )
        # Notices fade: one of the test before would be taken for one of the next.
        expect(self.page.locator(".p-toast-message")).to_have_count(0)
        self.errors.clear()
        self.requests_outside.clear()

    def load(self, workflow: dict[str, Any]) -> None:
        """Open a workflow in the UI's format, as from a file, and wait until every node is drawn."""
        self.page.evaluate("workflow => app.loadGraphData(workflow)", workflow)
        if RENDERERS[self.renderer]:
            self.page.wait_for_function(
                "app.canvas.graph.nodes.every(n => document.querySelector(`[data-node-id='${n.id}']`))"
            )
        self.frames()

    def frames(self, count: int = 2) -> None:
        """Let the page draw."""
        self.page.evaluate(
            "async n => { for (; n; n--) await new Promise(done => requestAnimationFrame(done)) }", count
        )

    def fit(self) -> None:
        """Zoom so that the whole workflow is seen."""
        self.command("Comfy.Canvas.FitView")
        # The view glides there; it is there when two looks a few frames apart see the same.
        seen = None
        while (now := self.page.evaluate("[app.canvas.ds.scale, ...app.canvas.ds.offset]")) != seen:
            seen = now
            self.frames(5)

    def command(self, name: str) -> None:
        """Execute one of the frontend's commands, by its id."""
        self.page.evaluate("name => app.extensionManager.command.execute(name)", name)

    def set(self, setting: str, value: Any) -> None:
        """Change a setting of the frontend. It stays until changed back."""
        self.page.evaluate(
            "([name, value]) => app.extensionManager.setting.set(name, value)", [setting, value]
        )

    def prompt(self) -> Prompt:
        """What Run would queue, and Export (API) write."""
        return self._exported("output")

    def prompt_without_titles(self) -> dict[str, Any]:
        """The same without the nodes' titles, which are in the person's language."""
        return {node_id: {**node, "_meta": None} for node_id, node in self.prompt().items()}

    def workflow(self) -> dict[str, Any]:
        """What Save would write."""
        return self._exported("workflow")

    def run(self) -> dict[str, Any]:
        """Press Run and wait for the end; returns the outputs by node id, as the history keeps them.

        Raises:
            AssertionError: the server refused the workflow, or a node failed; with what the frontend knows.
        """
        kind, detail = self.page.evaluate(
            """async () => {
                const kinds = ["execution_success", "execution_error", "execution_interrupted"];
                let listen;
                const ended = new Promise((resolve) => {
                    listen = (event) => resolve([event.type, event.detail]);
                    for (const kind of kinds) app.api.addEventListener(kind, listen);
                });
                const accepted = await app.queuePrompt(0);
                const errors = app.extensionManager.lastNodeErrors ?? app.lastNodeErrors;
                // Older frontends answer false where a prompt came back with an empty list of errors.
                const empty = errors && !Object.keys(errors).length;
                const end = accepted || empty ? await ended : ["refused", errors];
                for (const kind of kinds) app.api.removeEventListener(kind, listen);
                return end;
            }"""
        )
        assert kind == "execution_success", f"{kind}: {detail}"
        prompt_id = detail["prompt_id"]
        # The server tells the end before it writes the history.
        while prompt_id not in (history := self.page.request.get(f"{self.url}/history/{prompt_id}").json()):
            self.frames()
        self.frames()
        return history[prompt_id]["outputs"]

    def add(self, kind: str) -> str:
        """Put a new node of this type into the middle, at 100 %; returns its id."""
        node_id = self.page.evaluate(
            """kind => {
                const node = LiteGraph.createNode(kind);
                app.canvas.graph.add(node);
                return String(node.id);
            }""",
            kind,
        )
        self.center_on(node_id)
        return node_id

    def build(self, nodes: dict[str, dict[str, Any]], links: list[str]) -> dict[str, str]:
        """Put nodes on the canvas and wire them; returns their ids by name.

        Args:
            nodes: the type of each node → its widget values by name; in the order from left to right.
            links: `"VAELoader.VAE -> VAEDecode.vae"`: type and output's name, type and input's name.
        """
        ids = self.page.evaluate(
            """([nodes, links]) => {
                const graph = app.canvas.graph, made = {};
                let x = 100;
                for (const [kind, values] of Object.entries(nodes)) {
                    const node = (made[kind] = LiteGraph.createNode(kind));
                    node.pos = [x, 100];
                    graph.add(node);
                    x += node.size[0] + 60;
                    for (const [name, value] of Object.entries(values)) {
                        node.widgets.find(w => w.name === name).value = value;
                    }
                }
                for (const [from, output, to, input] of links) {
                    const slot = made[from].outputs.findIndex(o => o.name === output);
                    if (!made[from].connect(slot, made[to], made[to].findInputSlot(input))) throw Error(`no ${input}`);
                }
                return Object.fromEntries(Object.entries(made).map(([kind, node]) => [kind, String(node.id)]));
            }""",
            [nodes, [re.split(r" -> |\.", link) for link in links]],
        )
        self.frames()
        return ids

    def node_ids(self, kind: str) -> list[str]:
        """Ids of the nodes of this type in the graph that is on the canvas."""
        return self.page.evaluate(
            "kind => app.canvas.graph.nodes.filter(n => n.type === kind).map(n => String(n.id))", kind
        )

    def node_id(self, kind: str) -> str:
        """Id of the one node of this type."""
        (found,) = self.node_ids(kind)
        return found

    def widgets(self, node_id: str) -> dict[str, Any]:
        """A node's widget values by name, of those that are saved."""
        return self.page.evaluate(
            """id => Object.fromEntries((app.canvas.graph.getNodeById(id).widgets ?? [])
                .filter(w => w.serialize !== false && w.options?.serialize !== false)
                .map(w => [w.name, w.value]))""",
            node_id,
        )

    def missing_types(self) -> list[str]:
        """Types of nodes on the canvas that this server does not know."""
        return self.page.evaluate(
            "app.canvas.graph.nodes.map(n => n.type).filter(type => !LiteGraph.registered_node_types[type])"
        )

    def select(self, node_id: str) -> None:
        """Click on the node's title until it is selected: a busy canvas may still hold the pointer of a last drag."""
        for last in (False, False, True):
            self.page.mouse.click(*self.title_of(node_id))
            try:
                self.page.wait_for_function(
                    "id => [...app.canvas.selectedItems].some(n => String(n.id) === id)",
                    arg=node_id,
                    timeout=5_000,
                )
                break
            except PlaywrightTimeout:
                if last:
                    raise
        self.frames()

    def select_all(self, *node_ids: str) -> None:
        """Select these nodes, or all there are."""
        self.page.evaluate(
            """ids => {
                const nodes = app.canvas.graph.nodes;
                app.canvas.deselectAll();
                app.canvas.selectItems(ids.length ? nodes.filter(n => ids.includes(String(n.id))) : nodes);
            }""",
            list(node_ids),
        )

    def to_subgraph(self, *node_ids: str) -> str:
        """Convert these nodes to a subgraph; returns the id of the node that stands for it."""
        self.select_all(*node_ids)
        self.command("Comfy.Graph.ConvertToSubgraph")
        self.frames()
        return self.page.evaluate("String([...app.canvas.selectedItems].find(n => n.isSubgraphNode?.()).id)")

    def promote(self, subgraph: str, kind: str, widget: str, name: str) -> None:
        """Show a widget of the node of this type inside of a subgraph on its outside, under a name."""
        self.page.evaluate(
            """([id, kind, widget, name]) => {
                const { subgraph } = app.canvas.graph.getNodeById(id);
                const node = subgraph.nodes.find(n => n.type === kind);
                const input = node.inputs.find(i => i.widget?.name === widget);
                subgraph.addInput(name, input.type).connect(input, node);
            }""",
            [subgraph, kind, widget, name],
        )

    def set_widget(self, node_id: str, name: str, value: Any) -> None:
        self.page.evaluate(
            """([id, name, value]) => {
                app.canvas.graph.getNodeById(id).widgets.find(w => w.name === name).value = value;
            }""",
            [node_id, name, value],
        )

    def boxes(self) -> dict[str, Box]:
        """What every node covers, with its title, in canvas units; by id. Nodes 2.0 draws some larger than they say."""
        return {
            node_id: Box(*edges)
            for node_id, edges in self.page.evaluate(
                """() => app.canvas.graph.nodes.map((node) => {
                    const [x, y, width, height] = node.getBounding();
                    const drawn = document.querySelector(`[data-node-id='${node.id}']`)?.getBoundingClientRect();
                    if (!drawn) return [String(node.id), [x, y, x + width, y + height]];
                    const corners = [[drawn.left, drawn.top], [drawn.right, drawn.bottom]];
                    return [String(node.id), corners.flatMap((c) => [...app.clientPosToCanvasPos(c)])];
                })"""
            )
        }

    def center_on(self, node_id: str) -> None:
        """Bring a node into the middle at 100 %."""
        self.page.evaluate(
            """id => {
                app.canvas.ds.scale = 1;
                app.canvas.centerOnNode(app.canvas.graph.getNodeById(id));
                app.canvas.setDirty(true, true);
            }""",
            node_id,
        )
        self.frames(3)

    def title_of(self, node_id: str) -> tuple[float, float]:
        """Where the middle of a node's title bar is on the page."""
        x, y = self.page.evaluate(
            """id => {
                const node = app.canvas.graph.getNodeById(id);
                const place = app.canvasPosToClientPos([node.pos[0] + node.size[0] / 2, node.pos[1] - 15]);
                return [place[0], place[1]];
            }""",
            node_id,
        )
        return x, y

    def drop(self, files: dict[str, str | bytes], at: tuple[float, float]) -> None:
        """Drag files (name → content) from outside the browser to a position, and let go."""
        encoded = {
            name: base64.b64encode(content.encode() if isinstance(content, str) else content).decode()
            for name, content in files.items()
        }
        self.page.evaluate(
            """([files, x, y]) => {
                const dataTransfer = new DataTransfer();
                for (const [name, content] of Object.entries(files)) {
                    const bytes = Uint8Array.from(atob(content), (c) => c.charCodeAt(0));
                    const type = { png: "image/png", json: "application/json" }[name.split(".").pop()] ?? "";
                    dataTransfer.items.add(new File([bytes], name, { type }));
                }
                for (const kind of ["dragenter", "dragover", "drop"]) {
                    const event = new DragEvent(kind, {
                        dataTransfer, clientX: x, clientY: y, bubbles: true, cancelable: true, composed: true,
                    });
                    document.elementFromPoint(x, y).dispatchEvent(event);
                }
            }""",
            [encoded, *at],
        )
        self.frames()

    def screenshot(self, name: str) -> Path:
        """Keep what the tab shows now as a test artefact."""
        file = SCREENSHOTS / f"{self.renderer}-{name}.png"
        self.page.screenshot(path=file)
        return file

    def _exported(self, part: str) -> dict[str, Any]:
        # As text, for a file has no keys that are undefined, and Playwright hands those over as None.
        source = "async part => JSON.stringify((await app.graphToPrompt())[part])"
        return json.loads(self.page.evaluate(source, part))

    def _on_page_error(self, error: Error) -> None:
        text = f"{error.message}\n{error.stack or ''}"
        if OURS.search(text) or not FRONTENDS_OWN.search(error.message):
            self.errors.append(text)

    def _on_console(self, message: ConsoleMessage) -> None:
        text = f"{message.type}: {message.text} ({message.location.get('url', '')})"
        is_ours = OURS.search(text) and REGISTRY not in text
        if message.type in ("error", "warning") and is_ours:
            self.errors.append(text)

    def _on_request(self, request: Request) -> None:
        if not request.url.startswith((self.url, "data:", "blob:")):
            self.requests_outside.append(request.url)
