"""One real ComfyUI server with a current frontend, one Chromium, and one tab per renderer, for the whole floor."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from comfy_page import RENDERERS, SCREENSHOTS, VIEWPORT, ComfyPage
from playwright.sync_api import Browser, Playwright, sync_playwright

from scripts import chromium, comfyui_tree, frontend
from scripts.comfy_client import ComfyClient
from scripts.comfy_server import ComfyServer
from scripts.demo_models import ensure_models
from scripts.places import ROOT, demo_models

# Without a GPU, and without the calls that Chromium makes for itself.
SWITCHES = [
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
# A page that is left does not wait for what it has asked for, and ComfyUI logs that it could not answer. It logs what a
# policy refuses, too.
EXPECTED = re.compile(
    r"(\S+\.)?(ClientConnectionResetError|ConnectionResetError|BrokenPipeError|StrictPolicyError)\b"
)
DECODING: tuple[dict[str, dict[str, Any]], list[str]] = (
    {
        "VAELoader": {"vae_name": "demo_vae_16ch.safetensors"},
        "EmptySD3LatentImage": {"width": 64, "height": 64},
        "LayerwiseOffload_PlacementPolicy": {"vae": "layerwise", "vram_budget": "2GB"},
        "LayerwiseOffload_Loader": {},
        "VAEDecode": {},
        "SaveImage": {"filename_prefix": "browser"},
        "LayerwiseOffload_PlacementReport": {},
    },
    [
        "VAELoader.VAE -> LayerwiseOffload_Loader.vae",
        "LayerwiseOffload_PlacementPolicy.policy -> LayerwiseOffload_Loader.policy",
        "LayerwiseOffload_Loader.VAE -> VAEDecode.vae",
        "EmptySD3LatentImage.LATENT -> VAEDecode.samples",
        "VAEDecode.IMAGE -> SaveImage.images",
        "VAEDecode.IMAGE -> LayerwiseOffload_PlacementReport.after",
        "LayerwiseOffload_Loader.placements -> LayerwiseOffload_PlacementReport.placements",
    ],
)
WORKFLOWS = sorted((ROOT / "example_workflows").glob("*.json"))


@pytest.fixture(scope="session")
def server() -> Iterator[ComfyServer]:
    ensure_models(demo_models())
    tree = comfyui_tree.require()
    with ComfyServer(Path(sys.executable), tree, demo_models(), frontend=frontend.require()) as running:
        place_files_of_examples(running.base / "models")
        yield running
        assert running.tracebacks(but=EXPECTED) == []


def place_files_of_examples(models: Path) -> None:
    """Empty files under the names that the shipped workflows load, so that the frontend misses none."""
    for file in WORKFLOWS:
        for node in json.loads(file.read_text(encoding="utf-8"))["nodes"]:
            for model in node["properties"].get("models", []):
                placeholder = models / model["directory"] / model["name"]
                placeholder.parent.mkdir(exist_ok=True)
                placeholder.touch()


@pytest.fixture(scope="session")
def server_without_pack() -> Iterator[ComfyServer]:
    """What a person has who is sent a workflow, and has not installed the pack."""
    tree = comfyui_tree.require()
    with ComfyServer(
        Path(sys.executable), tree, demo_models(), frontend=frontend.require(), packs={}
    ) as running:
        yield running


@pytest.fixture(scope="session")
def client(server: ComfyServer) -> ComfyClient:
    return ComfyClient(server.url)


@pytest.fixture(scope="session")
def object_info(client: ComfyClient) -> dict[str, Any]:
    return client.object_info()


@pytest.fixture(scope="session")
def playwright() -> Iterator[Playwright]:
    with sync_playwright() as started:
        yield started


@pytest.fixture(scope="session")
def browser(playwright: Playwright) -> Iterator[Browser]:
    # The folder shows this session's pictures only.
    shutil.rmtree(SCREENSHOTS, ignore_errors=True)
    running = playwright.chromium.launch(executable_path=chromium.require(), args=SWITCHES)
    yield running
    running.close()


@pytest.fixture(scope="session", params=RENDERERS)
def tab(request: pytest.FixtureRequest, browser: Browser, server: ComfyServer) -> Iterator[ComfyPage]:
    """A tab that stays open for the session. Tests take `comfy`, which begins with an empty canvas."""
    context = browser.new_context(viewport=VIEWPORT)
    context.set_default_timeout(30_000)
    comfy = ComfyPage(context.new_page(), server.url, request.param)
    comfy.open()
    assert comfy.errors == []
    yield comfy
    context.close()


@pytest.fixture
def elsewhere(tab: ComfyPage, browser: Browser, server_without_pack: ComfyServer) -> Iterator[ComfyPage]:
    """A tab of the same renderer on a server without the pack."""
    context = browser.new_context(viewport=VIEWPORT)
    other = ComfyPage(context.new_page(), server_without_pack.url, tab.renderer)
    other.open()
    other.reset()
    yield other
    other.screenshot("elsewhere")
    context.close()


@pytest.fixture
def comfy(tab: ComfyPage, request: pytest.FixtureRequest) -> Iterator[ComfyPage]:
    """An empty canvas in one renderer, then in the other. Errors on the page fail the test; its last view is kept."""
    tab.reset()
    yield tab
    tab.screenshot(re.sub(r"\W+", "-", request.node.name.replace(tab.renderer, "")).strip("-"))
    assert tab.errors == []


@pytest.fixture(params=WORKFLOWS, ids=lambda file: file.stem)
def shipped(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Each shipped workflow in UI format."""
    return json.loads(request.param.read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def example() -> dict[str, Any]:
    """The shipped workflow that renders a picture with all demo models; a run takes many seconds."""
    return json.loads(
        (ROOT / "example_workflows" / "Placement policy on demo models.json").read_text(encoding="utf-8")
    )


@pytest.fixture
def decoding(comfy: ComfyPage) -> dict[str, str]:
    """A graph on the canvas that runs in a second: a placed VAE decodes, and the report tells. Ids by node type."""
    return comfy.build(*DECODING)


@pytest.fixture(scope="session")
def chinese_tab(tab: ComfyPage, browser: Browser) -> Iterator[ComfyPage]:
    """A tab of the same renderer whose language is Chinese, for the session."""
    context = browser.new_context(viewport=VIEWPORT)
    other = ComfyPage(context.new_page(), tab.url, tab.renderer)
    other.open(**{"Comfy.Locale": "zh"})
    yield other
    context.close()


@pytest.fixture
def chinese(chinese_tab: ComfyPage, request: pytest.FixtureRequest) -> Iterator[ComfyPage]:
    """An empty canvas in Chinese."""
    chinese_tab.reset()
    yield chinese_tab
    chinese_tab.screenshot(f"chinese-{re.sub(r'[^a-z]+', '-', request.node.originalname)}")
    assert chinese_tab.errors == []


@pytest.fixture
def chinese_decoding(chinese: ComfyPage) -> dict[str, str]:
    """The graph of `decoding` in Chinese."""
    return chinese.build(*DECODING)
