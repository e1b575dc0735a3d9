"""One inner model, several patchers: clones, branches, garbage collection, loaders in a row."""

from __future__ import annotations

import copy
import gc
from typing import Any

import pytest
import torch

from . import comfy_models
from .comfyui import ComfyUI
from .placing import BIG, MIB, PlacedObject, end_node, loaded, lora, ours_on, place, small_clip
from .test_inside_tensors import WIDTH, Stacked

pytestmark = pytest.mark.usefixtures("_inference_mode")


def encode(clip: Any) -> torch.Tensor:
    return comfy_models.encode(clip, "fox")[0]


def encode_again(placed: PlacedObject) -> None:
    """Encode with what is loaded, as in the middle of somebody's node."""
    model = placed.patcher.model
    model.reset_clip_options()
    model.encode_token_weights(placed.value.tokenize("fox"))


def test_two_branches_with_different_policies_and_one_without(comfy: ComfyUI) -> None:
    """The same loader output in three branches, in every order, and what is on the card each time."""
    comfy.sim.cap = BIG
    wired = small_clip(comfy)
    expected = encode(wired)
    comfy.mm.unload_all_models()
    live = comfy.sim.memory.live
    lean, rich = place("clip", wired), place("clip", wired, vram_budget="6MB")
    left = place("clip", wired, "resident")
    most = {id(lean): 3 * MIB, id(rich): 6 * MIB, id(left): 20 * MIB}
    for placed in (lean, left, rich, lean, rich, left, lean):
        assert torch.equal(encode(placed.value), expected)
        end_node(comfy)
        on_card = comfy.sim.memory.live - live
        assert on_card <= most[id(placed)]
        assert on_card == pytest.approx(loaded(comfy), abs=0.1 * MIB)
        assert sum(row.tiers["slot"] > 0 for row in (lean.row, rich.row)) == (placed is not left)
    # Three of four layers stay whole where there is room for them, and are not wrapped.
    assert (lean.row.layer_runs, rich.row.layer_runs, left.row.layer_runs) == (12, 2, 0)
    comfy.mm.unload_all_models()
    assert ours_on(wired.patcher.model) == set()


def test_clones_come_and_go_without_taking_the_layers_or_the_pins_along(comfy: ComfyUI) -> None:
    """Core copies `is_injected` to a clone and unpins the shared weights when one dies."""
    comfy.sim.cap = BIG
    placed = place("clip", small_clip(comfy))
    expected = encode(placed.value)
    encode(placed.value)
    with comfy.sim.measure() as before:
        encode(placed.value)
        usual = before.ms
    pinned = comfy.sim.pinned
    for _ in range(3):
        clone = placed.value.clone()
        patched = lora(placed.value)
        runs = placed.row.layer_runs
        encode_again(placed)
        assert placed.row.layer_runs == runs + 4, "a clone has taken the layers"
        del clone, patched
        gc.collect()
        encode_again(placed)
        assert placed.row.layer_runs == runs + 8, "a clone has taken the layers along"
    with comfy.sim.measure() as after:
        assert torch.equal(encode(placed.value), expected)
        took, pageable = after.ms, after.to_device_pageable
    assert comfy.sim.pinned == pinned
    assert pageable < 0.1 * MIB, "all weights are still pinned"
    assert took == pytest.approx(usual, rel=0.05)


def test_a_used_clone_that_dies_gives_its_slots_back(comfy: ComfyUI) -> None:
    comfy.sim.cap = BIG
    placed = place("clip", small_clip(comfy))
    live = comfy.sim.memory.live
    patched = lora(placed.value)
    encode(patched)
    del patched
    gc.collect()
    comfy.mm.cleanup_models_gc()
    assert placed.row.tiers["slot"] <= placed.placed.facts.layer_bytes
    encode(placed.value)
    comfy.mm.unload_all_models()
    end_node(comfy)
    assert comfy.sim.memory.live == live, comfy.sim.memory.report()
    assert placed.row.tiers["slot"] == 0


def test_of_two_loaders_in_a_row_the_later_one_is_what_comfyui_plans_with(comfy: ComfyUI) -> None:
    comfy.sim.cap = BIG
    wired = small_clip(comfy)
    expected, whole = encode(wired), wired.patcher.model_size()
    comfy.mm.unload_all_models()
    first = place("clip", wired)
    second = place("clip", first.value, "resident")
    assert second.patcher.model_size() == whole
    assert torch.equal(encode(second.value), expected)
    assert second.patcher.loaded_size() == whole
    third = place("clip", second.value)
    assert torch.equal(encode(third.value), expected)
    assert third.patcher.loaded_size() < whole / 4
    assert first.row.layer_runs == 0
    assert third.row.layer_runs == 4


def test_unloading_a_model_and_its_clones(comfy: ComfyUI) -> None:
    comfy.sim.cap = BIG
    other = comfy_models.sd3(comfy)
    placed = place("clip", small_clip(comfy))
    expected = encode(placed.value)
    comfy.mm.load_models_gpu([other])
    held = other.loaded_size()
    clone = placed.value.clone()
    if hasattr(comfy.mm, "unload_model_and_clones"):
        comfy.mm.unload_model_and_clones(clone.patcher)
    else:  # 0.3.75 has no such function: what a custom node does there
        kept = [m for m in comfy.mm.current_loaded_models if not clone.patcher.is_clone(m.model)]
        comfy.mm.free_memory(1e30, comfy.sim.device, keep_loaded=kept)
    assert placed.row.tiers["slot"] == 0
    assert ours_on(placed.patcher.model) == set()
    assert other.loaded_size() == held
    assert torch.equal(encode(clone), expected)


def test_a_copy_of_the_model_for_another_device_is_comfyuis(comfy: ComfyUI) -> None:
    """Multi-GPU and non-dynamic delegates are clones with another inner model."""
    comfy.sim.cap = BIG
    placed = place("clip", small_clip(comfy))
    encode(placed.value)
    comfy.mm.unload_all_models()
    clone = placed.patcher.clone()
    model = copy.deepcopy(placed.patcher.model)
    for callback in placed.patcher.get_all_callbacks("on_clone"):
        clone.model = model
        callback(placed.patcher, clone)
    assert not clone.attachments
    assert clone.model_size() >= placed.row.bytes, "the whole model, not what ours took"


def test_an_additional_model_of_a_sampling_run_is_layerwise_too(comfy: ComfyUI) -> None:
    """A ControlNet-like helper: loaded with the model, cloned with it, run at every step."""
    comfy.sim.cap = BIG
    helper = Stacked(comfy.ops.manual_cast)
    wired = comfy_models.sd3(comfy)
    helper_wired = comfy.model_patcher.ModelPatcher(helper, comfy.sim.device, torch.device("cpu"))

    def helped(model: Any, extra: Any) -> Any:
        def wrapper(apply: Any, args: Any) -> torch.Tensor:
            out = apply(args["input"], args["timestep"], **args["c"])
            return out + helper(out.reshape(-1, WIDTH)).reshape(out.shape) * 0.1

        clone = model.clone()
        clone.set_additional_models("helper", [extra])
        clone.set_model_unet_function_wrapper(wrapper)
        return clone.clone()

    expected = comfy_models.sample(comfy, helped(wired, helper_wired))
    comfy.mm.unload_all_models()
    assert not torch.allclose(expected, comfy_models.sample(comfy, wired))
    model, extra = place("model", wired), place("model", helper_wired)
    run = helped(model.value, extra.value)
    for _ in range(2):
        torch.testing.assert_close(comfy_models.sample(comfy, run), expected)
    assert extra.row.layer_runs == 2 * 2 * 4
    assert model.row.layer_runs == 2 * 2 * 2
    comfy.mm.unload_all_models()
    assert ours_on(helper) == ours_on(wired.model) == set()


def test_a_clone_of_a_clone_carries_each_contact_point_once_and_is_measured_anew(comfy: ComfyUI) -> None:
    """A chain of LoRA loaders clones at every node. Core tells a clone the size that its original reported."""
    from offload_runtime.adapter.attachment import KEY, strip

    comfy.sim.cap = BIG
    wired = small_clip(comfy)
    whole = wired.patcher.model_size()
    placed = place("clip", wired, vram_budget="3MB")
    patcher = placed.patcher
    for _ in range(6):
        patcher = patcher.clone()
    found = [len(by_key[KEY]) for by_key in patcher.callbacks.values() if KEY in by_key]
    assert found
    assert set(found) == {1}
    again = place("clip", placed.value).patcher
    assert [len(by_key[KEY]) for by_key in again.callbacks.values() if KEY in by_key] == found
    assert 0 < patcher.model_size() < whole
    strip(patcher)
    assert patcher.model_size() == whole
    assert not any(KEY in by_key for by_key in patcher.callbacks.values())


def test_what_streams_to_a_card_copies_on_the_stream_that_is_there(comfy: ComfyUI) -> None:
    comfy.sim.cap = BIG
    first = place("clip", small_clip(comfy))
    encode(first.value)
    there = comfy.sim.streams
    second = place("clip", small_clip(comfy))
    encode(second.value)
    encode(first.value.clone())
    assert (first.row.applied, second.row.applied) == ("layerwise", "layerwise")
    assert comfy.sim.streams == there
