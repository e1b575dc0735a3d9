"""What ComfyUI's log hears of the loads of what is placed on the simulated card, in the numbers of the live model."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from offload_runtime.policy import format_bytes

from . import comfy_models
from .comfyui import ComfyUI
from .placing import BIG, place, small_clip

pytestmark = pytest.mark.usefixtures("_inference_mode", "_listens")


@pytest.fixture
def _listens(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("LAYERWISE_OFFLOAD_LOG", raising=False)
    with caplog.at_level(logging.INFO, "layerwise_offload"):
        yield


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the pack has logged since the last time that somebody asked, without its name."""
    found = [record.getMessage() for record in caplog.records if record.name == "layerwise_offload"]
    caplog.clear()
    return [line.removeprefix("Layerwise Offload: ") for line in found]


def test_a_streamed_component_tells_its_layers_slots_and_who_stays(
    comfy: ComfyUI, caplog: pytest.LogCaptureFixture
) -> None:
    comfy.sim.cap = BIG
    stays = comfy_models.clip_l(comfy)
    comfy_models.encode(stays, "fox")
    placed = place("clip", small_clip(comfy))
    assert not lines(caplog)
    comfy_models.encode(placed.value, "fox")
    slots, beside = (format_bytes(n) for n in (placed.row.tiers["slot"], stays.patcher.loaded_size()))
    kind = type(stays.patcher.model).__name__
    loaded = f"4 layers streamed from pinned memory, {slots} of slots on sim:0; {beside} of {kind} stay"
    assert lines(caplog) == [f"text_encoder: {loaded}"]
    comfy_models.encode(placed.value, "dog")
    assert not lines(caplog)
    comfy.mm.unload_all_models()
    comfy_models.encode(placed.value, "fox")
    assert lines(caplog) == [f"text_encoder: {loaded.partition(';')[0]}"]


def test_layers_that_stay_and_weights_that_are_not_pinned_are_told(
    comfy: ComfyUI, caplog: pytest.LogCaptureFixture
) -> None:
    comfy.sim.cap = BIG
    placed = place("clip", small_clip(comfy), vram_budget="6MB", host="staged")
    comfy_models.encode(placed.value, "fox")
    (told,) = lines(caplog)
    assert "layers streamed from memory, " in told
    count, rest = told.removeprefix("text_encoder: ").split(" of 4 layers streamed ")
    model = (
        placed.patcher.model.transformer
        if hasattr(placed.patcher.model, "transformer")
        else placed.patcher.model
    )
    on_host = {
        name.split(".layers.")[1][0]
        for name, parameter in model.named_parameters()
        if ".layers." in name and parameter.device.type == "cpu"
    }
    assert int(count) == len(on_host) < 4, rest


def test_what_is_whole_tells_its_bytes(comfy: ComfyUI, caplog: pytest.LogCaptureFixture) -> None:
    comfy.sim.cap = BIG
    placed = place("clip", small_clip(comfy), "resident")
    comfy_models.encode(placed.value, "fox")
    assert lines(caplog) == [f"text_encoder: all {format_bytes(placed.row.bytes)} on sim:0"]
    comfy_models.encode(place("clip", small_clip(comfy), "auto", mode="manual").value, "fox")
    assert not lines(caplog)


def test_under_dynamic_vram_it_tells_the_placement_and_the_budget(
    comfy: ComfyUI, caplog: pytest.LogCaptureFixture
) -> None:
    if not comfy.has_dynamic:
        pytest.skip("This ComfyUI has no dynamic VRAM (it came after 0.3.75).")
    comfy.enable_dynamic()
    comfy.sim.cap = BIG
    placed = place("clip", comfy_models.clip_l(comfy), vram_budget="90MB")
    for _ in range(2):
        comfy_models.encode(placed.value, "fox")
    assert lines(caplog) == ["text_encoder: layerwise, paged in to sim:0 by dynamic VRAM, at most 90 MB"]


def test_packing_and_pinning_move_comfyuis_progress_bar_once(
    comfy: ComfyUI, monkeypatch: pytest.MonkeyPatch
) -> None:
    from offload_runtime.adapter import progress
    from offload_runtime.adapter.record import record_of

    monkeypatch.setattr(progress, "_LONG", 1)  # what takes long is too large for a test
    comfy.sim.cap = BIG
    placed = place("clip", small_clip(comfy))
    shown: list[tuple[int, int]] = []
    monkeypatch.setattr(
        comfy.utils, "PROGRESS_BAR_HOOK", lambda done, total, *_, **__: shown.append((done, total))
    )
    layers = [
        (number, 4) for number in range(1, 5)
    ]  # which run in slots, one after the other, the first time
    comfy_models.encode(placed.value, "fox")
    packed, ran = shown[:-4], shown[-4:]
    sizes = [done for done, _ in packed]
    streamed = record_of(placed.patcher.model).masters.weights.pinned_bytes
    assert packed[-1] == (streamed, streamed)
    assert 0 < sizes[0] < streamed, "newer ComfyUI versions leave out what comes too fast to be seen"
    assert sizes == sorted(sizes)
    assert ran == layers
    shown.clear()
    comfy.mm.unload_all_models()
    comfy_models.encode(placed.value, "dog")
    assert shown == layers, "nothing is packed twice"
