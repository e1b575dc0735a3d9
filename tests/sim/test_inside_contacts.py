"""A ComfyUI that lacks something that we rely on: it goes on by itself, to the same numbers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

from . import comfy_models
from .comfyui import ComfyUI
from .placing import BIG, place, small_clip

pytestmark = pytest.mark.usefixtures("_inference_mode", "_looked_up_anew")


@pytest.fixture
def _looked_up_anew(comfy: ComfyUI) -> Iterator[None]:
    from offload_runtime.adapter.contacts import missing

    missing.cache_clear()
    yield
    missing.cache_clear()


def stand_in(module: str, **instead: Any) -> ModuleType:
    """Return a module as another version may have it; ComfyUI itself goes on with the real one."""
    other = ModuleType(module)
    other.__dict__.update({**vars(sys.modules[module]), **instead})
    return other


class Lacking:
    """What a class has when nothing that we know is left of it."""


@pytest.mark.parametrize("wish", ["layerwise", "offload", "resident"])
@pytest.mark.parametrize(
    ("module", "kind", "lacked"),
    [
        ("comfy.model_patcher", "LowVramPatch", "LowVramPatch.memory_required"),
        ("comfy_aimdo.model_vbar", "ModelVBAR", "ModelVBAR.base_addr or ModelVBAR.loaded_size"),
    ],
)
def test_dynamic_vram_goes_on_without_us(
    comfy: ComfyUI, monkeypatch: pytest.MonkeyPatch, wish: str, module: str, kind: str, lacked: str
) -> None:
    if not comfy.has_dynamic:
        pytest.skip("this version has no dynamic VRAM")
    comfy.enable_dynamic()
    comfy.sim.cap = BIG
    clip = small_clip(comfy)
    expected = comfy_models.encode(clip)[0]
    monkeypatch.setitem(sys.modules, module, stand_in(module, **{kind: Lacking}))
    placed = place("clip", clip, wish, vram_budget="16MB")
    assert placed.row.applied == "comfyui"
    assert placed.row.how == f"left to ComfyUI, because this ComfyUI has no {lacked}"
    assert torch.equal(comfy_models.encode(placed.value)[0], expected)
    assert not placed.patcher.attachments


def test_without_pins_layers_are_copied_from_ordinary_memory(
    comfy: ComfyUI, monkeypatch: pytest.MonkeyPatch
) -> None:
    comfy.sim.cap = BIG
    clip = small_clip(comfy)
    expected = comfy_models.encode(clip)[0]
    module = "comfy.model_management"
    other = stand_in(module)
    del other.unpin_memory
    monkeypatch.setitem(sys.modules, module, other)
    placed = place("clip", clip, "layerwise")
    assert torch.equal(comfy_models.encode(placed.value)[0], expected)
    assert placed.row.applied == "layerwise"
    assert "copied from memory while" in placed.row.how
    assert placed.row.tiers["slot"]
