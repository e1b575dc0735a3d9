"""Layerwise on a machine that computes on the CPU: the same numbers, out of the model file."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import comfy.model_management as mm
import models
import pytest
import torch
from placing import SOURCE, PlacedObject, place, policy


def test_numbers_are_equal_bit_for_bit_and_the_report_counts_the_layers(
    family: models.Family, tmp_path: Path
) -> None:
    value = family.make()
    expected = family.run(value)
    placed = place(family, value, policy("layerwise"), tmp_path)
    assert torch.equal(family.run(placed.value), expected)
    row, layers = placed.row, placed.placements.placed[0].facts.layers
    assert (row.asked, row.asked_by) == ("layerwise", SOURCE.place)
    assert (row.decided, row.applied) == ("layerwise", "layerwise")
    assert f"{layers} of {layers} layers run on the CPU" in row.how
    assert row.layer_runs == layers
    assert row.tiers["file"] >= row.moved_bytes > 0


def test_the_input_object_is_not_touched(family: models.Family, tmp_path: Path) -> None:
    value = family.make()
    patcher, model = models.patcher_of(value), models.patcher_of(value).model
    patcher.model_size()  # ComfyUI remembers it on first use
    before, parameters = dict(patcher.__dict__), [id(p) for p in model.parameters()]
    family.run(place(family, value, policy("layerwise"), tmp_path).value)
    assert models.patcher_of(value) is patcher
    assert dict(patcher.__dict__) == before
    assert [id(p) for p in model.parameters()] == parameters


def test_unloading_leaves_no_attribute_of_ours(family: models.Family, tmp_path: Path) -> None:
    value = family.make()
    family.run(value)
    mm.unload_all_models()
    attributes = {name: set(m.__dict__) for name, m in models.patcher_of(value).model.named_modules()}
    placed = place(family, value, policy("layerwise"), tmp_path)
    family.run(placed.value)
    assert any("forward" in m.__dict__ for m in models.patcher_of(value).model.modules())
    mm.unload_all_models()
    assert {name: set(m.__dict__) for name, m in models.patcher_of(value).model.named_modules()} == attributes
    assert "not loaded now" in placed.row.how
    assert placed.row.tiers["slot"] == 0


def test_running_again_after_an_unload_gives_the_same_numbers(family: models.Family, tmp_path: Path) -> None:
    placed = place(family, family.make(), policy("layerwise"), tmp_path)
    expected = family.run(placed.value)
    mm.unload_all_models()
    assert torch.equal(family.run(placed.value), expected)


def test_a_sibling_without_a_policy_runs_untouched(family: models.Family, tmp_path: Path) -> None:
    """The same loader output, wired past our node into a second branch."""
    value = family.make()
    placed = place(family, value, policy("layerwise"), tmp_path)
    expected = family.run(placed.value)
    runs = placed.row.layer_runs
    assert torch.equal(family.run(value), expected)
    assert placed.row.layer_runs == runs
    assert torch.equal(family.run(placed.value), expected)
    assert placed.row.layer_runs == 2 * runs


def test_without_a_file_of_the_same_bytes_the_report_says_that_nothing_is_gained(
    family: models.Family, tmp_path: Path
) -> None:
    file = models.save(models.patcher_of(family.make(number=99)).model, tmp_path / "other.safetensors")
    value = family.make()
    expected = family.run(value)
    models.save(models.patcher_of(value).model, tmp_path / "same.safetensors")
    placed = PlacedObject(family.slot, value, policy("layerwise"), [file])
    assert torch.equal(family.run(placed.value), expected)
    assert "nothing would be gained" in placed.row.why
    assert "other.safetensors" in placed.row.why
    assert (placed.row.decided, placed.row.applied) == ("resident", "resident")
    assert placed.row.layer_runs == 0


def test_choosing_resident_brings_the_weights_back_into_memory(family: models.Family, tmp_path: Path) -> None:
    value = family.make()
    expected = family.run(value)
    family.run(place(family, value, policy("layerwise"), tmp_path).value)
    resident = place(family, value, policy("resident"))
    assert torch.equal(family.run(resident.value), expected)
    assert set(k for k, count in resident.row.tiers.items() if count) == {"memory"}
    assert "in memory" in resident.row.how


@pytest.mark.parametrize(
    ("wish", "applied"), [("resident", "resident"), ("offload", "resident"), ("cpu", "cpu")]
)
def test_placements_with_nothing_to_gain_say_so_and_change_nothing(
    family: models.Family, wish: str, applied: str
) -> None:
    value = family.make()
    expected = family.run(value)
    placed = place(family, value, policy(wish))
    assert torch.equal(family.run(placed.value), expected)
    assert "CPU" in placed.row.how
    assert placed.row.applied == applied
    assert not any("forward" in m.__dict__ for m in placed.patcher.model.modules())


def test_what_nobody_set_stays_where_the_cpu_computes(family: models.Family) -> None:
    placed = place(family, family.make(), policy("auto"))
    assert placed.row.asked == "auto"
    assert placed.row.applied == ("comfyui" if family.slot == "model" else "resident")


def test_an_interrupt_in_a_layer_leaves_everything_right(tmp_path: Path) -> None:
    """ComfyUI raises it inside an operation; on 0.33 it is a BaseException."""
    family = models.FAMILIES["clip"]
    value = family.make()
    expected = family.run(value)
    placed = place(family, value, policy("layerwise"), tmp_path)
    family.run(placed.value)
    ids = [id(p) for p in models.patcher_of(value).model.parameters()]
    model = models.patcher_of(value).model
    target = model.get_submodule("clip_l.transformer.text_model.encoder.layers.1.mlp")

    def interrupt(*args: object) -> None:
        mm.interrupt_current_processing(True)
        mm.throw_exception_if_processing_interrupted()

    hook = target.register_forward_pre_hook(interrupt)
    with pytest.raises(mm.InterruptProcessingException):
        family.run(placed.value)
    hook.remove()
    assert [id(p) for p in model.parameters()] == ids
    assert torch.equal(family.run(placed.value), expected)


def test_a_lora_behind_the_loader_is_applied(tmp_path: Path) -> None:
    family = models.FAMILIES["clip"]
    key = "clip_l.transformer.text_model.encoder.layers.1.mlp.fc1.weight"
    patch = {key: (torch.full((128, 64), 0.02),)}

    def with_lora(clip: object) -> object:
        clone = clip.clone()
        assert clone.add_patches(patch, 1.0) == [key]
        return clone

    value = family.make()
    plain = family.run(value)
    expected = family.run(with_lora(value))
    assert not torch.equal(plain, expected)
    placed = place(family, value, policy("layerwise"), tmp_path)
    patched = with_lora(placed.value)
    assert torch.equal(family.run(patched), expected)
    assert torch.equal(family.run(placed.value), plain)
    assert torch.equal(family.run(patched), expected)
    assert placed.row.layer_runs == 9, "clones made behind the loader run through the engine, too"


def test_a_clone_that_is_thrown_away_does_not_take_the_layers_along(tmp_path: Path) -> None:
    family = models.FAMILIES["clip"]
    placed = place(family, family.make(), policy("layerwise"), tmp_path)
    expected = family.run(placed.value)
    clone = placed.value.clone()
    del clone
    gc.collect()
    assert "3 of 3 layers run" in placed.row.how
    assert torch.equal(family.run(placed.value), expected)
    assert placed.row.layer_runs == 6


def test_of_two_loaders_in_a_row_the_later_one_wins(tmp_path: Path) -> None:
    family = models.FAMILIES["clip"]
    first = place(family, family.make(), policy("layerwise"), tmp_path)
    second = place(family, first.value, policy("resident"))
    family.run(second.value)
    assert "in memory" in second.row.how
    assert first.row.layer_runs == 0
    assert not any("forward" in m.__dict__ for m in second.patcher.model.modules())


def test_a_placed_object_dies_with_its_last_reference(family: models.Family, tmp_path: Path) -> None:
    placed = place(family, family.make(), policy("layerwise"), tmp_path)
    family.run(placed.value)
    mm.unload_all_models()
    patcher, placements = weakref.ref(placed.patcher), placed.placements
    model = weakref.ref(placed.patcher.model)
    gc.collect()
    gc.disable()
    try:
        del placed
        assert patcher() is None
    finally:
        gc.enable()
    gc.collect()
    assert model() is None, "a kept report keeps no model"
    assert placements.report().rows[0].component, "a kept report still reads"


def test_how_often_the_layers_ran_is_known_to_the_next_decision(tmp_path: Path) -> None:
    """A tiled decode repeats the layers: streaming would copy them again and again."""
    value = models.vae()
    placed = place(models.FAMILIES["vae"], value, policy("layerwise"), tmp_path)
    assert placed.placements.placed[0].facts.passes is None
    with torch.inference_mode():
        placed.value.decode_tiled(torch.zeros(1, 4, 32, 32), tile_x=16, tile_y=16, overlap=4)
    again = place(models.FAMILIES["vae"], value, policy("layerwise"))
    assert (again.placements.placed[0].facts.passes or 0) > 4


def test_a_model_that_is_compiled_behind_the_loader_gives_the_same_numbers(tmp_path: Path) -> None:
    """TorchCompileModel compiles the whole diffusion model when it samples; streamed layers run as they are."""
    import torch._dynamo  # what compiles has imported it before the model is loaded
    from comfy_api.torch_helpers import set_torch_compile_wrapper

    family = models.FAMILIES["model"]
    expected = models.denoise(models.diffusion_model())
    placed = place(family, models.diffusion_model(), policy("layerwise"), tmp_path)
    compiled = placed.value.clone()
    set_torch_compile_wrapper(compiled, backend="eager")
    torch._dynamo.utils.counters.clear()
    for _ in range(2):
        torch.testing.assert_close(models.denoise(compiled), expected)
    assert torch._dynamo.utils.counters["stats"]["calls_captured"], "the rest is compiled"
    assert placed.row.layer_runs == 4
    torch._dynamo.reset()
