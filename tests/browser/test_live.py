"""What the Placement Report shows while a prompt runs, and that it is gone when that has ended in whatever way."""

from __future__ import annotations

import itertools
import re

import pytest
from comfy_page import ComfyPage
from playwright.sync_api import Locator, expect

REPORT, LATENT = "LayerwiseOffload_PlacementReport", "EmptySD3LatentImage"
PATIENCE = 60_000
_WIDTHS = itertools.count(160, 16)  # what has run before comes from the cache


@pytest.fixture
def line(comfy: ComfyPage, decoding: dict[str, str]) -> Locator:
    """The line of a report whose run takes some seconds."""
    comfy.set_widget(decoding[LATENT], "width", next(_WIDTHS))
    comfy.center_on(decoding[REPORT])
    found = comfy.page.locator(".lwo-frame:has([aria-label='Placement report']) .lwo-live")
    expect(found).to_be_hidden()
    return found


def test_a_run_says_what_is_done_until_the_report_is_there(comfy: ComfyPage, line: Locator) -> None:
    comfy.page.evaluate(
        """() => {
            window.told = [];
            app.api.addEventListener("layerwise_offload.progress", () => window.told.push(performance.now()));
            app.queuePrompt(0);
        }"""
    )
    expect(line).to_have_text(re.compile(r"vae: layer \d+ of \d+, [\d.]+ [KMG]B copied"), timeout=PATIENCE)
    comfy.screenshot("live")
    panel = comfy.page.get_by_role("region", name="Placement report")
    expect(panel.locator("[data-component=vae]")).to_be_visible(timeout=PATIENCE)
    expect(line).to_be_hidden()
    comfy.frames(30)  # what comes late is not shown
    expect(line).to_be_hidden()
    told = comfy.page.evaluate("window.told")
    in_a_second = max(sum(1 for other in told if 0 <= other - when < 1000) for when in told)
    assert in_a_second <= 11, "ten a second, and one that has waited on its way"


def test_it_goes_away_when_the_run_is_interrupted(comfy: ComfyPage, line: Locator) -> None:
    comfy.page.evaluate("() => { app.queuePrompt(0) }")
    expect(line).to_have_text(re.compile("vae"), timeout=PATIENCE)
    comfy.page.evaluate("app.api.interrupt()")
    expect(line).to_be_hidden(timeout=PATIENCE)
    comfy.page.wait_for_function("() => !document.querySelector('.lwo-frame[data-live]')")
    comfy.screenshot("live-after-interrupt")
