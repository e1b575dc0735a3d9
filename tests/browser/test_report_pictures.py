"""The report in both themes and on narrow and wide screens: nothing is cut, and every word can be read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from comfy_page import VIEWPORT, ComfyPage
from playwright.sync_api import Locator, expect

REPORT = "LayerwiseOffload_PlacementReport"
GB, MB = 2**30, 2**20
READABLE = 4.5
"""The contrast that WCAG 2.2 asks for of text of this size (1.4.3)."""

CARD = {
    "device": "cuda:0",
    "name": "RTX 3060",
    "total": 12 * GB,
    "used": int(11.3 * GB),
    "other": 300 * MB,
    "models": {"diffusion_model": int(9.1 * GB), "text_encoder": 481 * MB},
    "during": "diffusion_model",
}
SUGGESTION = {
    "kind": "lift",
    "component": "vae",
    "selector": "all",
    "node": "Placement Policy",
    "widget": "vram_budget",
    "key": "vram_budget",
    "value": "10.4GB",
    "bytes": 160 * MB,
    "seconds": 0.3,
    "why": "it waited 300 ms for weights, and 748 MB of the device were to spare at the peak",
    "line": "vram_budget: 10.4GB",
    "yaml": "vram_budget: 10.4GB\n",
    "effect": "+160 MB of VRAM, about −300 ms a prompt (an estimate)",
}


def measured(begin: float, end: float, moved: int = 0, runs: int = 0, waiting: float = 0.0) -> dict[str, Any]:
    return {
        "in_this_run": True,
        "calls": 1,
        "computing": end - begin,
        "waiting": waiting,
        "moments": [begin, end],
        "moved_bytes": moved,
        "layer_runs": runs,
        "peak_bytes": 0,
        "predicted": 1.1 * (end - begin),
    }


def row(component: str, size: int, asked: str, applied: str, **more: Any) -> dict[str, Any]:
    return {
        "component": component,
        "bytes": size,
        "asked": asked,
        "asked_by": "",
        "decided": asked,
        "applied": applied,
        "how": "",
        "why": "",
        "device": "cuda:0",
        **more,
    }


ROWS = [
    row(
        "diffusion_model",
        int(11.9 * GB),
        "auto",
        "comfyui",
        tiers={"cuda:0": int(9.1 * GB), "memory": int(2.8 * GB), "slot": 0},
        host_now={"mapped": 0, "pinned": int(2.8 * GB), "pageable": 0},
        measured=measured(1.2, 19.5) | {"calls": 20, "peak_bytes": int(11.3 * GB)},
    ),
    row(
        "text_encoder",
        int(9.5 * GB),
        "layerwise",
        "layerwise",
        tiers={"memory": int(9.1 * GB), "slot": 481 * MB},
        host_now={"mapped": 2 * GB, "pinned": 5 * GB, "pageable": 2 * GB},
        measured=measured(0.1, 1.1, 9 * GB, 24, 0.7),
    ),
    row(
        "vae",
        164 * MB,
        "resident",
        "offload",
        how="ComfyUI loads it whole as far as it fits, and may still evict it for another model",
        why="resident was set by Placement Policy, node 3",
        tiers={"memory": 164 * MB, "slot": 0},
        host_now={"mapped": 0, "pinned": 0, "pageable": 164 * MB},
        measured=measured(19.5, 20.9),
    ),
]


@pytest.fixture(params=["dark", "light"])
def theme(request: pytest.FixtureRequest, tab: ComfyPage) -> Iterator[str]:
    tab.set("Comfy.ColorPalette", request.param)
    yield request.param
    tab.set("Comfy.ColorPalette", "dark")


@pytest.fixture(params=[(1024, 768), (1920, 1080)], ids=["1024", "1920"])
def width(request: pytest.FixtureRequest, tab: ComfyPage) -> Iterator[int]:
    tab.page.set_viewport_size(dict(zip(("width", "height"), request.param, strict=True)))
    yield request.param[0]
    tab.page.set_viewport_size(VIEWPORT)


@pytest.fixture
def panel(comfy: ComfyPage, theme: str, width: int, decoding: dict[str, str]) -> Locator:
    """A report of a card, as ComfyUI hands it over after a run."""
    comfy.run()
    node = decoding[REPORT]
    comfy.page.evaluate(
        """([id, changes]) => {
            const outputs = JSON.parse(JSON.stringify(app.nodeOutputs));
            Object.assign(outputs[id].placement_report.at(-1), changes);
            app.nodeOutputs = outputs;
            app.canvas.graph.getNodeById(id).setSize([460, 620]);
            app.canvas.setDirty(true, true);
        }""",
        [
            node,
            {
                "card": CARD,
                "rows": ROWS,
                "suggestions": [SUGGESTION],
                "peaks": {"process memory": 6 * GB},
            },
        ],
    )
    comfy.center_on(node)
    found = comfy.page.get_by_role("region", name="Placement report")
    expect(found.locator(".lwo-suggestion")).to_be_visible()
    return found


def test_what_was_measured_is_told(panel: Locator) -> None:
    model = panel.locator("[data-component=diffusion_model]")
    expect(model).to_contain_text(
        "computed 18.3 s in 20 calls · predicted 20.1 s · 11.30 GB of the device in use at the peak"
    )
    encoder = panel.locator("[data-component=text_encoder]")
    expect(encoder).to_contain_text(
        "moved 9.00 GB in 24 layer runs · computed 1.0 s · 700 ms of it waiting for weights"
    )
    expect(panel).to_contain_text("6.00 GB of memory at the peak of ComfyUI")


def test_nothing_is_cut_and_every_word_can_be_read(
    comfy: ComfyPage, panel: Locator, theme: str, width: int
) -> None:
    comfy.frames(5)
    comfy.screenshot(f"report-{theme}-{width}")
    assert panel.evaluate("e => e.scrollWidth <= e.clientWidth")
    cut = panel.locator("p, li, h4, button").evaluate_all(
        "all => all.filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.textContent)"
    )
    assert cut == []
    faint = panel.evaluate(
        """(panel, least) => {
            const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
            const rgb = (color, below) => {
                canvas.fillStyle = below; canvas.fillRect(0, 0, 1, 1);
                canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1);
                return [...canvas.getImageData(0, 0, 1, 1).data.slice(0, 3)].map(v => v / 255);
            };
            const light = color => color
                .map(v => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
                .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
            const css = color => `rgb(${color.map(v => Math.round(v * 255)).join()})`;
            const ground = e => {
                const below = e === panel ? "#888" : css(ground(e.parentElement));
                return rgb(getComputedStyle(e).backgroundColor, below);
            };
            const words = [...panel.querySelectorAll("*")].filter(
                e => [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim()) && !e.disabled
            );
            return words.flatMap(e => {
                const below = ground(e);
                const [a, b] = [light(rgb(getComputedStyle(e).color, css(below))), light(below)].sort((x, y) => y - x);
                const contrast = (a + 0.05) / (b + 0.05);
                return contrast < least ? [`${e.textContent}: ${contrast.toFixed(2)}`] : [];
            });
        }""",
        READABLE,
    )
    assert faint == []
