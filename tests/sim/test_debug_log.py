"""The debug log on the simulated card: decisions, loads and unloads, with the numbers of the live model."""

from __future__ import annotations

import re

import pytest

from . import comfy_models
from .comfyui import ComfyUI
from .placing import BIG, MIB, place, small_clip

pytestmark = pytest.mark.usefixtures("_inference_mode", "_debug_log")


@pytest.fixture
def _debug_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAYERWISE_OFFLOAD_LOG", "debug")


@pytest.fixture
def dynamic(comfy: ComfyUI) -> ComfyUI:
    """ComfyUI with dynamic VRAM on an ample card."""
    if not comfy.has_dynamic:
        pytest.skip("This ComfyUI has no dynamic VRAM (it came after 0.3.75).")
    comfy.enable_dynamic()
    comfy.sim.cap = BIG
    return comfy


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the pack has logged since the last time that somebody asked."""
    found = [record.getMessage() for record in caplog.records if record.name == "layerwise_offload"]
    caplog.clear()
    return found


def test_a_load_tells_which_layers_stay_and_what_it_takes(
    comfy: ComfyUI, caplog: pytest.LogCaptureFixture
) -> None:
    comfy.sim.cap = BIG
    placed = place("clip", small_clip(comfy), vram_budget="4MB")
    (decided,) = lines(caplog)
    assert "text_encoder (" in decided
    assert "asked layerwise by Placement Policy, node 1; decided layerwise; applied layerwise; " in decided
    assert "budget 4 MB; host pinned; because layerwise was set by" in decided
    comfy_models.encode(placed.value, "fox")
    (loaded,) = lines(caplog)
    stay = re.search(r"loaded to sim:0: (\d) of 4 layers stay(?:: \S+\.layers\.([\d, -]+);)?", loaded)
    assert stay, loaded
    model = placed.patcher.model
    there = {
        name.split(".layers.")[1][0]
        for name, parameter in model.named_parameters()
        if ".layers." in name and parameter.device.type == "sim"
    }
    assert int(stay[1]) <= len(there)
    assert f"{placed.row.tiers['slot'] // MIB} MB" in loaded.split("slots of ")[1]
    assert re.search(r"; (\d+ [KM]B) pinned$", loaded)
    comfy.mm.unload_all_models()
    (unloaded,) = lines(caplog)
    assert "text_encoder unloaded from sim:0: slots of" in unloaded


def test_layers_that_stay_are_named(comfy: ComfyUI, caplog: pytest.LogCaptureFixture) -> None:
    comfy.sim.cap = BIG
    placed = place("clip", small_clip(comfy), vram_budget="6MB")
    comfy_models.encode(placed.value, "fox")
    loaded = lines(caplog)[-1]
    stay = re.search(r": (\d) of 4 layers stay: (\S+)\.layers\.([\d, -]+);", loaded)
    assert stay, loaded
    names = {f"{stay[2]}.layers.{i}" for i in _numbers(stay[3])}
    assert len(names) == int(stay[1]) > 0
    for name in names:
        devices = {p.device.type for p in placed.patcher.model.get_submodule(name).parameters()}
        assert devices == {"sim"}, name


def test_what_comfyui_takes_back_is_told(comfy: ComfyUI, caplog: pytest.LogCaptureFixture) -> None:
    comfy.sim.cap = BIG
    placed = place("clip", small_clip(comfy), vram_budget="6MB")
    comfy_models.encode(placed.value, "fox")
    caplog.clear()
    freed = placed.patcher.partially_unload(placed.patcher.offload_device, MIB)
    (told,) = lines(caplog)
    assert f"text_encoder gave {freed // MIB} MB back, 1 MB were asked for" in told


def test_under_dynamic_vram_a_load_tells_the_place_in_line(
    dynamic: ComfyUI, caplog: pytest.LogCaptureFixture
) -> None:
    placed = place("clip", comfy_models.clip_l(dynamic), vram_budget="90MB")
    (decided,) = lines(caplog)
    assert "decided layerwise" in decided
    comfy_models.encode(placed.value, "fox")
    (loaded,) = lines(caplog)
    assert (
        "text_encoder loaded to sim:0 by dynamic VRAM: layerwise, at the end of the line; budget 90 MB"
        in loaded
    )
    dynamic.mm.unload_all_models()
    (unloaded,) = lines(caplog)
    assert unloaded.endswith("text_encoder unloaded from sim:0 by dynamic VRAM")


def _numbers(text: str) -> list[int]:
    found: list[int] = []
    for part in text.split(", "):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found
