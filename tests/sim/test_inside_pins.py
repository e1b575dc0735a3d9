"""Pinned memory: who has it, who gives it back, and what the report says of it."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch

from . import comfy_models
from .comfyui import ComfyUI
from .placing import BIG, MIB, end_node, lora, place, small_clip

pytestmark = pytest.mark.usefixtures("_inference_mode")


def encode(clip: Any) -> torch.Tensor:
    return comfy_models.encode(clip, "fox")[0]


def blocks(clip: Any) -> int:
    """The bytes of memory that weights of a model share with others: packed layers."""
    seen = {}
    for parameter in clip.patcher.model.parameters():
        storage = parameter.untyped_storage()
        if parameter.device.type == "cpu" and storage.nbytes() > parameter.nbytes:
            seen[storage.data_ptr()] = storage.nbytes()
    return sum(seen.values())


def layer_bytes(clip: Any) -> int:
    return sum(p.nbytes for name, p in clip.patcher.model.named_parameters() if ".layers." in name)


def test_the_token_table_is_not_pinned(comfy: ComfyUI) -> None:
    """It is looked up where it is; only a patched one is copied."""
    comfy.sim.cap = BIG
    wired = small_clip(comfy)
    (name,) = [n for n, _ in wired.patcher.model.named_parameters() if n.endswith("token_embedding.weight")]
    table = wired.patcher.model.get_parameter(name)
    comfy.cap_for(MIB)
    encode(wired)
    assert table.is_pinned(), "core streams it"
    comfy.mm.unload_all_models()
    comfy.sim.cap = BIG
    placed = place("clip", wired)
    for _ in range(2):
        encode(placed.value)
        assert not table.is_pinned()
        assert comfy.sim.pinned < wired.patcher.model_size() - table.nbytes + MIB
    patched = placed.value.clone()
    patched.add_patches({name: (torch.full(table.shape, 0.01),)}, 1.0)
    encode(patched)
    assert table.is_pinned()


@pytest.mark.parametrize("share", [0, 0.5])
def test_a_pin_that_the_system_refuses_reads_staged_and_says_why(comfy: ComfyUI, share: float) -> None:
    comfy.sim.cap = BIG
    wired = small_clip(comfy)
    expected = encode(wired)
    comfy.mm.unload_all_models()
    comfy.sim.pin_limit = comfy.sim.pinned + int(share * layer_bytes(wired))
    placed = place("clip", wired)
    assert str(placed.placed.decision.host_tier) == "pinned"
    assert torch.equal(encode(placed.value), expected)
    assert placed.row.host == "staged"
    assert "could not be pinned: the system refused to pin more" in placed.row.host_why
    comfy.sim.pin_limit = None
    assert torch.equal(encode(placed.value), expected)
    assert placed.row.host == "pinned", "it was asked for again"
    assert "may be pinned" in placed.row.host_why


def test_a_pin_that_comfyuis_limit_refuses_says_so(comfy: ComfyUI, monkeypatch: pytest.MonkeyPatch) -> None:
    if "MAX_PINNED_MEMORY" in comfy.mm.pin_memory.__code__.co_names and hasattr(
        comfy.mm, "ensure_pin_registerable"
    ):
        pytest.skip("this ComfyUI takes pins of others instead of refusing")
    comfy.sim.cap = BIG
    placed = place("clip", small_clip(comfy))
    monkeypatch.setattr(comfy.mm, "MAX_PINNED_MEMORY", comfy.mm.TOTAL_PINNED_MEMORY + MIB)
    encode(placed.value)
    assert placed.row.host == "staged"
    assert "ComfyUI pins at most" in placed.row.host_why


@pytest.mark.parametrize("kept", [True, False], ids=["cached", "dropped"])
@pytest.mark.parametrize("leaves", ["resident", "offload", "auto", "bypassed"])
@pytest.mark.parametrize("room", [BIG, 4 * MIB], ids=["room", "none"])
def test_blocks_go_when_a_component_leaves_layerwise(
    comfy: ComfyUI, leaves: str, kept: bool, room: int
) -> None:
    """Whether or not a cache keeps the earlier clone, and whether or not core then loads the model whole."""
    comfy.sim.cap = BIG
    wired = small_clip(comfy)
    expected = encode(wired)
    comfy.mm.unload_all_models()
    objects = {name: id(p) for name, p in wired.patcher.model.named_parameters()}
    placed = place("clip", wired)
    encode(placed.value)
    assert blocks(wired) > 0.9 * layer_bytes(wired)
    if not kept:
        del placed
        gc.collect()
    after = wired if leaves == "bypassed" else place("clip", wired, leaves, mode="manual").value
    if room < BIG:
        comfy.mm.unload_all_models()
        comfy.cap_for(room)
    for _ in range(2):
        assert torch.equal(encode(after), expected)
        end_node(comfy)
        comfy.sim.synchronize()
    assert blocks(wired) == 0
    assert {name: id(p) for name, p in wired.patcher.model.named_parameters()} == objects
    on_host = sum(p.nbytes for p in wired.patcher.model.parameters() if p.device.type == "cpu")
    assert comfy.sim.pinned <= on_host
    assert all(
        p.is_pinned()
        for name, p in wired.patcher.model.named_parameters()
        if ".layers." in name and p.device.type == "cpu"
    ), "core's own pins are as they would be without us"
    comfy.mm.unload_all_models()


def test_blocks_stay_while_another_placed_clone_runs(comfy: ComfyUI) -> None:
    comfy.sim.cap = BIG
    placed = place("clip", small_clip(comfy))
    encode(placed.value)
    patched = lora(placed.value)
    pinned = comfy.sim.pinned
    for clip in (patched, placed.value, patched):
        encode(clip)
        assert blocks(placed.value) > 0.9 * layer_bytes(placed.value)
        assert comfy.sim.pinned == pinned


def test_two_clones_that_a_cache_keeps_keep_no_pins(comfy: ComfyUI) -> None:
    comfy.sim.cap = BIG
    wired = small_clip(comfy)
    placed = place("clip", wired)
    patched = lora(placed.value)
    encode(patched)
    expected = encode(placed.value)
    comfy.cap_for(4 * MIB)
    for _ in range(2):
        assert torch.equal(encode(wired), expected)
        end_node(comfy)
    assert blocks(wired) == 0
    assert torch.equal(encode(placed.value), expected)
    assert torch.equal(encode(wired), expected)


def test_what_packing_adds_is_what_it_adds(comfy: ComfyUI) -> None:
    """Weights in memory of their own are replaced in place; those that share a file's are not."""
    from offload_runtime.adapter.record import record_of
    from offload_runtime.adapter.structure import find_stacks

    comfy.sim.cap = BIG
    wired = small_clip(comfy)
    model = wired.patcher.model
    stacks = find_stacks(model)
    in_layers = sum(stack.bytes for stack in stacks)
    record = record_of(model)
    assert record.masters.bytes_to_add(stacks, record.mapped) == 0
    assert record.masters.pinned_bytes(wired.patcher, stacks) == 0
    file = torch.empty(in_layers + 4096, dtype=torch.uint8)
    at = 0
    for stack in stacks:
        for layer in stack.layers:
            for parameter in layer.module.parameters():
                own = file[at : at + parameter.nbytes].view(parameter.dtype).view(parameter.shape)
                own.copy_(parameter)
                parameter.set_(own)
                at += parameter.nbytes
    assert record.masters.bytes_to_add(stacks, record.mapped) == in_layers
    placed = place("clip", wired)
    assert placed.placed.facts.bytes_to_add == in_layers
    encode(placed.value)
    assert record.masters.bytes_to_add(stacks, record.mapped) == 0
    assert record.masters.pinned_bytes(placed.patcher, stacks) == pytest.approx(in_layers, rel=0.01)


def addresses(clip: Any) -> list[int]:
    """Where the weights of the layers are in memory."""
    named = clip.patcher.model.named_parameters()
    return [p.data_ptr() for name, p in named if ".layers." in name]


@pytest.mark.parametrize("kept", [True, False], ids=["cached", "dropped"])
def test_what_was_staged_is_pinned_where_it_is_once_that_is_asked_for(comfy: ComfyUI, *, kept: bool) -> None:
    comfy.sim.cap = BIG
    wired = small_clip(comfy)
    expected = encode(wired)
    comfy.mm.unload_all_models()
    first = place("clip", wired, host="staged")
    encode(first.value)
    assert (first.row.host, comfy.sim.pinned < layer_bytes(wired)) == ("staged", True)
    before = addresses(wired)
    if not kept:
        del first
        gc.collect()
    later = place("clip", wired, host="pinned")
    assert torch.equal(encode(later.value), expected)
    assert later.row.host == "pinned"
    assert comfy.sim.pinned > layer_bytes(wired)
    assert addresses(wired) == before, "nothing was copied for it"


def test_a_refused_pin_is_had_in_place(comfy: ComfyUI) -> None:
    comfy.sim.cap = BIG
    wired = small_clip(comfy)
    placed = place("clip", wired)
    comfy.sim.pin_limit = 0
    expected, before = encode(placed.value), addresses(wired)
    assert placed.row.host == "staged"
    comfy.sim.pin_limit = None
    assert torch.equal(encode(placed.value), expected)
    assert placed.row.host == "pinned"
    assert addresses(wired) == before


def test_what_was_pinned_is_staged_where_it_is_once_nobody_wants_it_pinned(comfy: ComfyUI) -> None:
    comfy.sim.cap = BIG
    wired = small_clip(comfy)
    first = place("clip", wired)
    expected, before, pinned = encode(first.value), addresses(wired), comfy.sim.pinned
    later = place("clip", wired, host="staged")
    for placed in (later, first, later):
        assert torch.equal(encode(placed.value), expected)
        assert comfy.sim.pinned == pinned, "the other placement wants it"
        assert placed.row.host == "pinned"
    assert "another placement of this model" in later.row.host_why
    del first, placed
    gc.collect()
    assert torch.equal(encode(later.value), expected)
    assert later.row.host == "staged"
    assert comfy.sim.pinned <= pinned - 0.9 * layer_bytes(wired)
    assert addresses(wired) == before


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """ComfyUI's folder for temporary files."""
    import folder_paths

    monkeypatch.setattr(folder_paths, "temp_directory", str(tmp_path / "temp"))
    return tmp_path / "temp"


def test_a_wish_for_the_file_without_one_is_met_by_one_of_ours(comfy: ComfyUI, temporary: Path) -> None:
    comfy.sim.cap = BIG
    wired = small_clip(comfy)
    expected = encode(wired)
    end_node(comfy)  # ComfyUI leaves it loaded
    placed = place("clip", wired, host="mapped")
    (file,) = temporary.rglob("*.safetensors")
    for _ in range(2):
        assert torch.equal(encode(placed.value), expected)
        assert placed.row.host == "mapped"
        assert "copied from the model file" in placed.row.how
        assert placed.row.tiers["file"] >= layer_bytes(wired)
        assert str(file.parent) in placed.row.host_why
        end_node(comfy)
        comfy.mm.unload_all_models()


def test_a_wish_for_the_file_that_cannot_be_written_says_where_the_weights_wait(
    comfy: ComfyUI, temporary: Path
) -> None:
    comfy.sim.cap = BIG
    temporary.write_text("a file where the folder should be")
    placed = place("clip", small_clip(comfy), host="mapped")
    encode(placed.value)
    assert placed.row.host != "mapped"
    assert "mapped was asked for, and the workflow names no file" in placed.row.host_why
    assert f"could not be written to {temporary}" in placed.row.host_why
