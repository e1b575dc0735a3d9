"""Where an encoder computes when a pack calls it past `CLIP`: on the card, or the report says it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from . import comfy_models
from .comfyui import ComfyUI
from .placing import BIG, end_node, ours_on, place, small_clip, vram_state

pytestmark = pytest.mark.usefixtures("_inference_mode")

WISHES = ["layerwise", "resident", "offload", "auto"]


def straight(comfy: ComfyUI, clip: Any, device: torch.device | None = None) -> torch.Tensor:
    """Encode without `CLIP.encode_from_tokens`: load the patcher, and call the model."""
    comfy.mm.load_models_gpu([clip.patcher])
    clip.cond_stage_model.reset_clip_options()
    if device is not None:
        clip.cond_stage_model.set_clip_options({"execution_device": device})
    result = clip.cond_stage_model.encode_token_weights(clip.tokenize("fox"))[0]
    end_node(comfy)
    return result


@contextmanager
def watched(clip: Any) -> Iterator[set[str]]:
    """Collect the devices on which the layers of an encoder get their inputs."""
    devices: set[str] = set()
    layers = [m for n, m in clip.patcher.model.named_modules() if n.endswith(("layers.0", "layers.1"))]
    assert layers
    handles = [m.register_forward_pre_hook(lambda _, args: devices.add(args[0].device.type)) for m in layers]
    yield devices
    for handle in handles:
        handle.remove()


@pytest.fixture(params=["legacy", "dynamic"])
def either(comfy: ComfyUI, request: pytest.FixtureRequest) -> ComfyUI:
    """ComfyUI with each of its memory managers."""
    if request.param == "dynamic":
        if not comfy.has_dynamic:
            pytest.skip("This ComfyUI has no dynamic VRAM (it came after 0.3.75).")
        comfy.enable_dynamic()
    comfy.sim.cap = BIG
    return comfy


@pytest.mark.parametrize("state", ["NORMAL_VRAM", "NO_VRAM"])
@pytest.mark.parametrize("wish", WISHES)
def test_an_encoder_called_straight_computes_on_the_card(either: ComfyUI, wish: str, state: str) -> None:
    wired = small_clip(either)
    with vram_state(either, state):
        expected = comfy_models.encode(wired, "fox")[0]
        either.mm.unload_all_models()
        placed = place("clip", wired, wish)
        clone = placed.value.clone()
        for clip in (placed.value, clone, placed.value):
            with watched(clip) as devices:
                assert torch.equal(straight(either, clip), expected)
            assert devices == {"sim"}
        assert torch.equal(comfy_models.encode(placed.value, "fox")[0], expected)
        assert "on cpu" not in placed.row.how
    either.mm.unload_all_models()
    assert not ours_on(wired.patcher.model)


def test_the_input_object_is_left_to_core(comfy: ComfyUI) -> None:
    """Only what the loader hands on computes on the card: nothing of ours is on the object that came in."""
    comfy.sim.cap = BIG
    wired = small_clip(comfy)
    placed = place("clip", wired, "auto")
    comfy_models.encode(placed.value, "fox")
    comfy_models.encode(wired, "fox")
    assert not ours_on(wired.patcher.model)
    assert not wired.patcher.injections
    vae = place("vae", comfy_models.kl_vae(comfy), "resident")
    vae.value.decode(torch.zeros(1, 4, 8, 8))
    assert not ours_on(vae.patcher.model), "it has no table"


@pytest.mark.parametrize("wish", ["layerwise", "resident"])
def test_an_encoder_sent_to_the_cpu_by_its_caller_is_reported(either: ComfyUI, wish: str) -> None:
    wired = small_clip(either)
    cpu = torch.device("cpu")
    if not hasattr(next(wired.patcher.model.children()), "execution_device"):
        pytest.skip("This ComfyUI asks the table only, so nobody can ask for another device.")
    placed = place("clip", wired, wish)
    for _ in range(2):
        with watched(placed.value) as devices:
            straight(either, placed.value, cpu)
        assert "cpu" in devices
        assert "inputs" in placed.row.how
        assert "on cpu" in placed.row.how
