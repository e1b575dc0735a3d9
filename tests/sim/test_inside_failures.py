"""An interrupt, an exception or a full card in any layer: the weights are back, and the next use is right."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from . import comfy_models
from .comfyui import ComfyUI
from .placing import BIG, end_node, ours_on, place, small_clip

pytestmark = pytest.mark.usefixtures("_inference_mode")

LAYERS = "clip_l.transformer.text_model.encoder.layers"


def encode(clip: Any) -> torch.Tensor:
    return comfy_models.encode(clip, "fox")[0]


@pytest.mark.parametrize("pinned", [True, False], ids=["pinned", "pageable"])
@pytest.mark.parametrize("kind", ["interrupt", "exception", "out of memory"])
def test_a_failure_in_any_layer(
    comfy: ComfyUI, monkeypatch: pytest.MonkeyPatch, kind: str, pinned: bool
) -> None:
    if not pinned:
        monkeypatch.setattr(comfy.mm, "MAX_PINNED_MEMORY", -1)
    comfy.sim.cap = BIG
    placed = place("clip", small_clip(comfy))
    expected = encode(placed.value)
    model = placed.patcher.model
    layers = model.get_submodule(LAYERS)
    live, ids = comfy.sim.memory.live, [id(p) for p in layers.parameters()]

    def interrupt(*args: object) -> None:
        comfy.mm.interrupt_current_processing(True)
        comfy.mm.throw_exception_if_processing_interrupted()

    def fail(*args: object) -> None:
        raise ValueError("half-way")

    def fill(*args: object) -> None:
        torch.empty(BIG, dtype=torch.uint8, device=comfy.sim.device)

    error, hook = {
        "interrupt": (comfy.mm.InterruptProcessingException, interrupt),
        "exception": (ValueError, fail),
        "out of memory": (torch.OutOfMemoryError, fill),
    }[kind]
    for index in range(4):
        for part in ("self_attn.q_proj", "mlp.fc2"):
            handle = model.get_submodule(f"{LAYERS}.{index}.{part}").register_forward_pre_hook(hook)
            with pytest.raises(error):
                encode(placed.value)
            handle.remove()
            assert [id(p) for p in layers.parameters()] == ids
            assert {p.device.type for p in layers.parameters()} == {"cpu"}
    assert torch.equal(encode(placed.value), expected)
    end_node(comfy)
    assert comfy.sim.memory.live <= live
    assert placed.row.applied == "layerwise"


@pytest.mark.parametrize("loaded_before", [False, True], ids=["first", "again"])
def test_a_load_that_fails_leaves_nothing_on_the_model(comfy: ComfyUI, loaded_before: bool) -> None:
    """ComfyUI injects although a load has failed, and does not count the patcher as loaded."""
    comfy.sim.cap = BIG
    wired = small_clip(comfy)
    expected = encode(wired)
    comfy.mm.unload_all_models()
    placed = place("clip", wired)
    if loaded_before:
        encode(placed.value)

    def fail(*_: object) -> None:
        raise ValueError("of somebody else's")

    event = comfy.model_patcher.CallbacksMP.ON_LOAD
    placed.patcher.add_callback_with_key(event, "somebody else", fail)
    if loaded_before:
        comfy.mm.unload_all_models()  # or there is nothing left to load
    for _ in range(2):
        with pytest.raises(ValueError, match="somebody else's"):
            encode(placed.value)
        assert ours_on(wired.patcher.model) == set()
        comfy.mm.unload_all_models()
    placed.patcher.remove_callbacks_with_key(event, "somebody else")
    runs = placed.row.layer_runs
    assert torch.equal(encode(wired), expected)
    assert placed.row.layer_runs == runs
    assert torch.equal(encode(placed.value), expected)
    assert placed.row.layer_runs > runs
    assert ours_on(wired.patcher.model) != set()


def test_a_failure_is_followed_by_another_prompt_without_a_reload(comfy: ComfyUI) -> None:
    """A sampler's or a VAE's second try runs the model again as it was left."""
    comfy.sim.cap = BIG
    vae = place("vae", comfy_models.kl_vae(comfy))
    latent = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(1))
    expected = vae.value.decode(latent)
    model = vae.patcher.model

    def fail(*args: object) -> None:
        raise ValueError("half-way")

    on_card = latent.to(comfy.sim.device)
    straight = model.decode(on_card).cpu()
    for name in ("decoder.mid.block_1", "decoder.up.2.block.0", "decoder.up.0.block.1"):
        handle = model.get_submodule(name).conv2.register_forward_pre_hook(fail)
        with pytest.raises(ValueError, match="half-way"):
            model.decode(on_card)
        handle.remove()
        assert torch.equal(model.decode(on_card).cpu(), straight)
    assert torch.equal(vae.value.decode(latent), expected)
