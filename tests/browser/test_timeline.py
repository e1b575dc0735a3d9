"""Save timeline: one click in the Placement Report."""

from __future__ import annotations

import json
import re
from pathlib import Path

from comfy_page import ComfyPage
from playwright.sync_api import Locator, expect

REPORT = "LayerwiseOffload_PlacementReport"


def button(comfy: ComfyPage, node_id: str) -> Locator:
    comfy.center_on(node_id)
    return comfy.page.get_by_role("region", name="Placement report").get_by_role(
        "button", name="Save timeline"
    )


def test_one_click_saves_the_run_that_is_shown(
    comfy: ComfyPage, decoding: dict[str, str], tmp_path: Path
) -> None:
    outputs = comfy.run()
    with comfy.page.expect_download() as download:
        button(comfy, decoding[REPORT]).click()
    name = download.value.suggested_filename
    assert re.fullmatch(r"layerwise-offload-timeline-\d{8}-\d{6}\.json", name)
    download.value.save_as(tmp_path / name)
    events = json.loads((tmp_path / name).read_text(encoding="utf-8"))["traceEvents"]
    names = {event["args"]["name"] for event in events if event["ph"] == "M" and "name" in event["args"]}
    assert {"host", "cpu", "compute", "copies"} <= names
    (row,) = outputs[decoding[REPORT]]["placement_report"][-1]["rows"]
    copies = [event for event in events if event.get("cat") == "copies"]
    assert sum(event["args"]["bytes"] for event in copies) == row["measured"]["moved_bytes"]
    expect(comfy.page.locator(".p-toast-message")).to_contain_text(f"{name}: open it at ui.perfetto.dev")


def test_a_run_that_is_over_is_a_sentence_and_no_file(comfy: ComfyPage, decoding: dict[str, str]) -> None:
    comfy.run()
    comfy.page.evaluate(
        """() => {
            for (const output of Object.values(app.nodeOutputs)) {
                for (const report of output.placement_report ?? []) report.began -= 60;
            }
            app.nodeOutputs = JSON.parse(JSON.stringify(app.nodeOutputs));
        }"""
    )
    comfy.frames(3)
    button(comfy, decoding[REPORT]).click()
    said = comfy.page.locator(".p-toast-message")
    expect(said).to_contain_text("There is no timeline")
    expect(said).to_contain_text("another run has begun since")
