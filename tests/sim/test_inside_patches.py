"""Weights that change under a layerwise component: LoRAs, hooks, keyframes, object patches, compiled modules."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from . import comfy_models
from .comfyui import ComfyUI
from .placing import BIG, SMALL_CLIP, lora, ours_on, place, small_clip, vram_state

pytestmark = pytest.mark.usefixtures("_inference_mode")

LAYERS = "clip_l.transformer.text_model.encoder.layers"


def encode(clip: Any) -> torch.Tensor:
    return comfy_models.encode(clip, "fox")[0]


def core(comfy: ComfyUI, clip: Any) -> torch.Tensor:
    """What core computes when it streams everything, as we do; then everything is unloaded."""
    with vram_state(comfy, "NO_VRAM"):
        result = encode(clip)
    comfy.mm.unload_all_models()
    return result


@pytest.mark.parametrize("budget", [None, "8MB"])
def test_a_lora_before_after_changed_and_removed(comfy: ComfyUI, budget: str | None) -> None:
    comfy.sim.cap = BIG
    wired = small_clip(comfy)
    plain, half, full = (core(comfy, c) for c in (wired, lora(wired, 0.5), lora(wired)))
    assert not torch.allclose(plain, half, atol=1e-2)
    assert not torch.allclose(half, full, atol=1e-2)
    before = place("clip", lora(wired), vram_budget=budget)
    placed = place("clip", wired, vram_budget=budget)
    wanted = [
        (before.value, full),
        (placed.value, plain),
        (lora(placed.value), full),
        (lora(placed.value, 0.5), half),
        (placed.value, plain),
        (wired, plain),
        (before.value, full),
    ]
    for number, (clip, expected) in enumerate(wanted):
        # Resident weights are patched once and rounded, streamed ones at every use.
        torch.testing.assert_close(
            encode(clip), expected, atol=1e-2, rtol=1e-2, msg=lambda m, n=number: f"step {n}: {m}"
        )
    # With the budget, the layers are resident, and not wrapped any more once it is known how often they run.
    runs = (2 * 4, 4 * 4) if budget is None else (1 * 4, 0)
    assert (before.row.layer_runs, placed.row.layer_runs) == runs


def test_a_lora_on_the_token_table_is_applied_on_the_card(comfy: ComfyUI) -> None:
    comfy.sim.cap = BIG
    key = "clip_l.transformer.text_model.embeddings.token_embedding.weight"

    def patched(clip: Any) -> Any:
        clone = clip.clone()
        assert clone.add_patches(
            {key: (torch.randn((49408, 128), generator=torch.Generator().manual_seed(3)) * 0.02,)}, 1.0
        ) == [key]
        return clone

    wired = small_clip(comfy)
    expected = core(comfy, patched(wired))
    placed = place("clip", wired)
    assert not torch.allclose(encode(placed.value), expected, atol=1e-3)
    with comfy.sim.measure() as m:
        got = encode(patched(placed.value))
    torch.testing.assert_close(got, expected, atol=1e-3, rtol=1e-3)
    assert m.kernels > 40, "the encode ran on the card"
    assert m.to_device > placed.patcher.model.get_parameter(key).nbytes, "and so did the patch"


def hooked(comfy: ComfyUI, clip: Any, strengths: list[float], *, speed: bool = False) -> Any:
    """What Set CLIP Hooks makes of a LoRA hook with keyframes."""
    import comfy.hooks as hooks

    state = clip.patcher.model_state_dict()
    keys = [key for key in state if key.startswith(LAYERS) and key.endswith("mlp.fc1.weight")]
    generator = torch.Generator().manual_seed(3)
    group = hooks.HookGroup()
    hook = hooks.WeightHook(strength_model=1.0, strength_clip=1.0)
    group.add(hook)
    hook.need_weight_init = False
    hook.weights_clip = {key: (torch.randn(state[key].shape, generator=generator) * 0.05,) for key in keys}
    frames = hooks.HookKeyframeGroup()
    for number, strength in enumerate(strengths):
        frames.add(hooks.HookKeyframe(strength, start_percent=number / len(strengths)))
    group.set_keyframes_on_hooks(frames)
    clone = clip.clone()
    clone.apply_hooks_to_conds = group
    clone.patcher.forced_hooks = group.clone()
    clone.use_clip_schedule = True
    clone.patcher.set_hook_mode(hooks.EnumHookMode.MaxSpeed if speed else hooks.EnumHookMode.MinVram)
    clone.patcher.register_all_hook_patches(group, hooks.create_target_dict(hooks.EnumWeightTarget.Clip))
    return clone


def scheduled(clip: Any) -> list[torch.Tensor]:
    return [c for c, _ in clip.encode_from_tokens_scheduled(clip.tokenize("fox"), show_pbar=False)]


@pytest.mark.parametrize("layers", [4, 2], ids=["four layers", "both layers in the slots"])
@pytest.mark.parametrize("speed", [False, True], ids=["MinVram", "MaxSpeed"])
def test_hook_keyframes_change_the_weights_between_two_forwards(
    comfy: ComfyUI, speed: bool, layers: int
) -> None:
    comfy.sim.cap = BIG
    wired = comfy_models.clip_l(comfy, None, {**SMALL_CLIP, "num_hidden_layers": layers})
    strengths = [0.0, 1.0, 0.5]
    with vram_state(comfy, "NO_VRAM"):
        expected = scheduled(hooked(comfy, wired, strengths, speed=speed))
        plain = encode(wired)
    comfy.mm.unload_all_models()
    assert torch.equal(expected[0], plain)
    # Core keeps the patched weights of a group, whatever its keyframe says by then: not ours to change.
    assert torch.equal(expected[1], plain) == speed
    placed = place("clip", wired)
    clip = hooked(comfy, placed.value, strengths, speed=speed)
    for _ in range(2):
        got = scheduled(clip)
        assert len(got) == len(expected) == 3
        for one, other in zip(got, expected, strict=True):
            torch.testing.assert_close(one, other, atol=1e-3, rtol=1e-3)
    assert torch.equal(encode(placed.value), plain)
    assert torch.equal(encode(wired), plain)


def test_a_hook_on_conditions_switches_a_layerwise_diffusion_model(comfy: ComfyUI) -> None:
    """One of the two prompts carries a weight hook, so every step runs the model with and without it."""
    import comfy.hooks as hooks

    def sample(model: Any) -> torch.Tensor:
        key = "diffusion_model.joint_blocks.0.x_block.mlp.fc1.weight"
        group = hooks.HookGroup()
        hook = hooks.WeightHook(strength_model=1.0, strength_clip=1.0)
        group.add(hook)
        hook.need_weight_init = False
        shape = model.model_state_dict()[key].shape
        hook.weights = {key: (torch.randn(shape, generator=torch.Generator().manual_seed(3)) * 0.05,)}
        return comfy_models.sample(comfy, model, hooks=group)

    comfy.sim.cap = BIG
    model = comfy_models.sd3(comfy)
    plain = comfy_models.sample(comfy, model)
    expected = sample(model)
    comfy.mm.unload_all_models()
    assert not torch.allclose(plain, expected, atol=1e-3)
    placed = place("model", model)
    torch.testing.assert_close(sample(placed.value), expected, atol=1e-4, rtol=1e-4)
    assert torch.equal(comfy_models.sample(comfy, placed.value), plain)
    assert placed.row.layer_runs > 0


def test_a_lora_on_a_model_that_keeps_both_layers_in_its_slots(comfy: ComfyUI) -> None:
    """Two blocks, both in the slots for the whole run: a patch that wrote into a slot would add up."""
    comfy.sim.cap = BIG
    model = comfy_models.sd3(comfy)
    key = "diffusion_model.joint_blocks.0.x_block.mlp.fc1.weight"

    def patched(model: Any) -> Any:
        clone, shape = model.clone(), model.model_state_dict()[key].shape
        clone.add_patches({key: (torch.randn(shape, generator=torch.Generator().manual_seed(3)) * 0.05,)}, 1)
        return clone

    expected = comfy_models.sample(comfy, patched(model), steps=4)
    comfy.mm.unload_all_models()
    placed = place("model", model)
    got = comfy_models.sample(comfy, patched(placed.value), steps=4)
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)
    assert placed.row.layer_runs > 0


def test_a_forward_that_an_object_patch_replaces_is_called_and_given_back(comfy: ComfyUI) -> None:
    comfy.sim.cap = BIG
    wired = small_clip(comfy)
    layer = wired.patcher.model.get_submodule(f"{LAYERS}.1")
    calls = []

    def forward(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        calls.append(x.device.type)
        return type(layer).forward(layer, x, *args, **kwargs) * 1.5

    def patched(clip: Any) -> Any:
        clone = clip.clone()
        clone.patcher.add_object_patch(f"{LAYERS}.1.forward", forward)
        return clone

    plain = encode(wired)
    expected = encode(patched(wired))
    comfy.mm.unload_all_models()
    attributes = ours_on(wired.patcher.model)
    placed = place("clip", wired)
    assert torch.equal(encode(patched(placed.value)), expected)
    assert torch.equal(encode(placed.value), plain)
    assert torch.equal(encode(patched(placed.value)), expected)
    assert set(calls) == {"sim"}
    comfy.mm.unload_all_models()
    assert ours_on(wired.patcher.model) == attributes, "core's own restored forward, and nothing of ours"


def test_a_compiled_layer_is_left_alone(comfy: ComfyUI) -> None:
    comfy.sim.cap = BIG
    wired = small_clip(comfy)
    expected = encode(wired)
    comfy.mm.unload_all_models()
    layers = wired.patcher.model.get_submodule(LAYERS)
    compiled = torch.compile(layers[2], backend="eager")
    layers[2] = compiled
    placed = place("clip", wired)
    torch._dynamo.config.disable = True  # what the layer is matters here, not what the compiler makes of it
    try:
        assert torch.equal(encode(placed.value), expected)
        assert placed.row.layer_runs == 3
        assert "3 of 4 layers run" in placed.row.how
        assert "1 that torch.compile made" in placed.row.how
        assert ours_on(compiled._orig_mod) == set()
    finally:
        torch._dynamo.config.disable = False


def test_a_model_whose_layers_are_all_compiled_is_left_to_comfyui(comfy: ComfyUI) -> None:
    wired = small_clip(comfy)
    layers = wired.patcher.model.get_submodule(LAYERS)
    for index, layer in enumerate(layers):
        layers[index] = torch.compile(layer, backend="eager")
    row = place("clip", wired).row
    assert row.applied == "comfyui"
    assert "torch.compile made all its layers" in row.why
