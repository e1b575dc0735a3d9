"""The debug log of components that the CPU computes from their files."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import comfy.model_management as mm
import models
import pytest
from placing import SOURCE, place, policy

from offload_runtime.policy import format_bytes

ROOT = Path(__file__).resolve().parents[2]


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the pack has logged since the last time that somebody asked."""
    found = [record.getMessage() for record in caplog.records if record.name == "layerwise_offload"]
    caplog.clear()
    return found


def test_one_line_for_the_decision_one_for_the_load_and_one_for_the_unload(
    family: models.Family, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    mm.unload_all_models()  # what an earlier test has left
    monkeypatch.setenv("LAYERWISE_OFFLOAD_LOG", "debug")
    placed = place(family, family.make(), policy("layerwise"), tmp_path)
    facts = placed.placements.placed[0].facts
    (decided,) = lines(caplog)
    assert decided.startswith(f"Layerwise Offload: {facts.name} ({facts.model}, ")
    assert f"asked layerwise by {SOURCE.place}; decided layerwise; applied layerwise; no budget;" in decided
    assert "host mapped" in decided
    for _ in range(2):
        family.run(placed.value)
    (loaded,) = lines(caplog)
    assert f"{facts.name} loaded to cpu: 0 of {facts.layers} layers stay; weights: " in loaded
    assert " in file" in loaded
    assert "0 B pinned" in loaded
    mm.unload_all_models()
    (unloaded,) = lines(caplog)
    assert f"{facts.name} unloaded from cpu: slots of " in unloaded
    family.run(placed.value)
    assert len(lines(caplog)) == 1


def test_nothing_is_said_and_nothing_is_read_unless_somebody_asks(
    family: models.Family, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from offload_runtime.adapter import debug_lines

    monkeypatch.delenv("LAYERWISE_OFFLOAD_LOG", raising=False)
    asked: list[object] = []
    for name in ("decision", "load", "unload"):
        monkeypatch.setattr(debug_lines, name, lambda *given: asked.append(given))
    with caplog.at_level(logging.INFO):
        family.run(place(family, family.make(), policy("layerwise"), tmp_path).value)
        mm.unload_all_models()
    assert not asked
    assert len(lines(caplog)) == 1  # that of the load, which everybody hears


def test_a_load_is_one_line_for_everybody_and_what_is_left_to_comfyui_has_none(
    family: models.Family, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("LAYERWISE_OFFLOAD_LOG", raising=False)
    mm.unload_all_models()
    caplog.clear()
    with caplog.at_level(logging.INFO):
        placed = place(family, family.make(), policy("layerwise"), tmp_path)
        assert not lines(caplog)
        for _ in range(2):
            family.run(placed.value)
        (told,) = lines(caplog)
        facts = placed.placements.placed[0].facts
        slots = format_bytes(placed.placements.report().rows[0].tiers["slot"])
        start = (
            f"Layerwise Offload: {facts.name}: {facts.layers} layers streamed from the model file, {slots}"
        )
        assert told == f"{start} of slots on cpu"
        mm.unload_all_models()
        family.run(placed.value)
        assert lines(caplog) == [told]
        resident = place(family, family.make(), policy("resident"), tmp_path)
        family.run(resident.value)
        size = format_bytes(resident.placements.placed[0].facts.bytes)
        assert lines(caplog) == [f"Layerwise Offload: {facts.name}: all {size} on cpu"]
        family.run(family.make())
        assert not lines(caplog)


def test_verbose_debug_asks_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, family: models.Family
) -> None:
    monkeypatch.delenv("LAYERWISE_OFFLOAD_LOG", raising=False)
    mm.unload_all_models()
    caplog.clear()
    with caplog.at_level(logging.DEBUG):
        place(family, family.make(), policy("resident"), tmp_path)
    assert len(lines(caplog)) == 1


_AS_COMFYUI_SETS_IT_UP = """
import inspect, os, sys
sys.path[:0] = [os.environ["COMFYUI_PATH"], {root!r}]
from app.logger import setup_logger
files = {{"file_outputs": []}} if "file_outputs" in inspect.signature(setup_logger).parameters else {{}}
setup_logger(log_level={level!r}, **files)
from offload_runtime import log
log.debug(lambda: "a line")
"""


@pytest.mark.parametrize(
    ("level", "asked", "heard"),
    [
        ("INFO", "", False),
        ("DEBUG", "", True),
        ("INFO", "debug", True),
        ("ERROR", "debug", True),
        ("INFO", "off", False),
    ],
)
def test_comfyuis_own_handler_prints_what_is_asked_for_once(level: str, asked: str, heard: bool) -> None:
    code = _AS_COMFYUI_SETS_IT_UP.format(root=str(ROOT), level=level)
    environment = {**os.environ, "LAYERWISE_OFFLOAD_LOG": asked}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    assert (done.stdout + done.stderr).count("Layerwise Offload: a line") == heard
