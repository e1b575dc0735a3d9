"""A dynamic-VRAM patcher is passed through untouched, and the report says so in one line."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from . import comfy_models
from .comfyui import ComfyUI
from .placing import BIG, lora, ours_on, place, small_clip

pytestmark = pytest.mark.usefixtures("_inference_mode")


@pytest.mark.parametrize("budget", [None, "8MB"])
def test_nothing_of_ours_touches_a_dynamic_patcher(comfy: ComfyUI, budget: str | None) -> None:
    if not comfy.has_dynamic:
        pytest.skip("This ComfyUI has no dynamic VRAM (it came after 0.3.75).")
    comfy.enable_dynamic()
    comfy.sim.cap = BIG

    def encode(clip: Any) -> torch.Tensor:
        result = comfy_models.encode(clip, "fox")[0]
        comfy.end_node()
        return result

    wired = small_clip(comfy)
    assert wired.patcher.is_dynamic()
    expected, patched = encode(wired), encode(lora(wired))
    attributes = {name: set(m.__dict__) for name, m in wired.patcher.model.named_modules()}
    placed = place("clip", wired, vram_budget=budget)
    patcher = placed.patcher
    assert type(patcher) is type(wired.patcher)
    assert patcher.is_dynamic()
    assert not patcher.attachments
    assert not patcher.injections
    assert not any(patcher.callbacks.get(kind) for kind in ("on_clone", "on_detach", "on_load"))
    methods = {"partially_load", "partially_unload", "model_size", "loaded_size", "pin_weight_to_device"}
    assert not methods & set(patcher.__dict__)
    assert patcher.model_size() == wired.patcher.model_size(), "its ranges are made by this size"
    encode(placed.value)
    with comfy.sim.measure() as ours:
        assert torch.equal(encode(placed.value), expected)
    with comfy.sim.measure() as core:
        assert torch.equal(encode(wired), expected)
    assert ours.ms == pytest.approx(core.ms, rel=0.01)
    torch.testing.assert_close(encode(lora(placed.value)), patched)
    assert {name: set(m.__dict__) for name, m in wired.patcher.model.named_modules()} == attributes
    assert ours_on(wired.patcher.model) == set()
    row = placed.row
    assert (row.decided, row.applied, row.layer_runs) == ("layerwise", "comfyui", 0)
    assert "dynamic VRAM" in row.how
    assert "\n" not in row.how
    del placed, patcher
    assert torch.equal(encode(wired), expected)
