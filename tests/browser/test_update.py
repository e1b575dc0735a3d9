"""The pack is updated while browsers still hold its files of the day before."""

from __future__ import annotations

import functools
import http.server
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from comfy_page import VIEWPORT, ComfyPage
from playwright.sync_api import Browser, expect

from scripts import comfyui_tree, frontend
from scripts.comfy_server import NOT_PACK, ComfyServer, claim_port
from scripts.places import PACK_NAME, ROOT, demo_models

POLICY = "LayerwiseOffload_PlacementPolicy"
FOLDER = f"extensions/{PACK_NAME}"
# What browsers were given without a word about how long it holds.
FIRST_HELPERS = [
    "chain",
    "dom",
    "drop",
    "outputs",
    "policy_fields",
    "policy_files",
    "policy_node",
    "report_table",
    "strings",
    "text_nodes",
]
LONG_AGO = 1_600_000_000.0  # browsers keep a file the longer, the older it is


class Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """A test has no use for an access log."""


@pytest.fixture
def tab_in_one_profile(browser: Browser) -> Iterator[ComfyPage]:
    """A tab that knows no page yet; its cache lasts for the test."""
    context = browser.new_context(viewport=VIEWPORT)
    context.set_default_timeout(30_000)
    yield ComfyPage(context.new_page(), f"http://127.0.0.1:{claim_port(None)}", "litegraph")
    context.close()


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A copy of the pack whose files are old."""
    copy = tmp_path / "pack"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*NOT_PACK))
    age(copy)
    return copy


def age(folder: Path) -> None:
    for file in folder.rglob("*"):
        os.utime(file, (LONG_AGO, LONG_AGO))


def visit_first_version(tab: ComfyPage, folder: Path) -> None:
    """Have the browser load the helpers of the first version, as its server served them."""
    served = folder / FOLDER
    served.mkdir(parents=True)
    for name in FIRST_HELPERS:
        (served / f"{name}.mjs").write_text("export {};\n")
    imports = "".join(f'import "/{FOLDER}/{name}.mjs";' for name in FIRST_HELPERS)
    (folder / "first.html").write_text(f"<script type=module>{imports} globalThis.loaded = true</script>")
    age(folder)
    port = int(tab.url.rpartition(":")[2])
    handler = functools.partial(Silent, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), handler) as old:
        threading.Thread(target=old.serve_forever).start()
        tab.page.goto(f"{tab.url}/first.html")
        tab.page.wait_for_function("globalThis.loaded")
        tab.page.goto("about:blank")
        old.shutdown()


def update(pack: Path) -> None:
    """Every helper exports something new, and the entry cannot do without it."""
    entry = pack / "web" / "layerwise_offload.js"
    text = entry.read_text(encoding="utf-8")
    for place, helper in enumerate(sorted((pack / "web").rglob("*.mjs"))):
        helper.write_text(
            helper.read_text(encoding="utf-8") + f"\nexport const novelty{place} = true;\n", encoding="utf-8"
        )
        path = helper.relative_to(pack / "web").as_posix()
        text += f'import {{ novelty{place} }} from "./{path}";\nglobalThis.novelties = novelty{place};\n'
    entry.write_text(text, encoding="utf-8")


def assert_works(tab: ComfyPage) -> None:
    tab.open()
    assert tab.errors == []
    tab.add(POLICY)
    expect(tab.page.get_by_role("button", name="Copy as YAML")).to_be_visible()


def test_the_page_works_after_an_update_and_after_the_next(
    tab_in_one_profile: ComfyPage, installed: Path, tmp_path: Path
) -> None:
    tab = tab_in_one_profile
    visit_first_version(tab, tmp_path / "first_version")
    port = int(tab.url.rpartition(":")[2])
    with ComfyServer(
        Path(sys.executable),
        comfyui_tree.require(),
        demo_models(),
        port=port,
        frontend=frontend.require(),
        packs={PACK_NAME: installed},
    ):
        assert_works(tab)
        update(installed)
        assert_works(tab)
        assert tab.page.evaluate("globalThis.novelties")
