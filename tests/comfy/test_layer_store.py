"""Weights that no model file holds: written once when somebody asks for `mapped`, and read from there."""

from __future__ import annotations

import errno
import gc
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import comfy.model_management as mm
import folder_paths
import models
import psutil
import pytest
import torch
from placing import SOURCE, PlacedObject
from safetensors.torch import load_file

from offload_runtime.adapter import Placements, at_rest, layer_store, load_and_place
from offload_runtime.adapter.layer_store import LayerStore
from offload_runtime.adapter.record import record_of
from offload_runtime.engine import WeightFile
from offload_runtime.errors import LayerStoreError, StrictPolicyError
from offload_runtime.policy import Policy

GB = 1024**3


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """ComfyUI's folder for temporary files, and the store's inside of it."""
    monkeypatch.setattr(folder_paths, "temp_directory", str(tmp_path / "temp"))
    monkeypatch.setattr(at_rest, "DELAY", 0.0)
    yield layer_store.store_now().folder
    mm.unload_all_models()


def asked(placement: str = "layerwise", *, host: str = "mapped", strict: bool = False) -> Policy:
    """Ask for a placement and a host tier for every kind of component."""
    policy = Policy()
    for selector in ("text_encoder", "image_encoder", "vae", "dit"):
        policy = policy.extended(Policy.for_component(SOURCE, selector, placement=placement, host=host))
    return policy.extended(Policy.from_widgets(SOURCE, strict="on")) if strict else policy


def place(family: models.Family, value: Any, wish: Policy | None = None, *files: Path) -> PlacedObject:
    return PlacedObject(family.slot, value, wish or asked(), list(files))


def stored(folder: Path) -> list[Path]:
    return sorted(folder.glob("*")) if folder.is_dir() else []


def test_its_layers_run_out_of_the_store_to_the_bit_and_the_report_says_where(
    family: models.Family, folder: Path
) -> None:
    value = family.make()
    expected = family.run(value)
    placed = place(family, value, asked(strict=True))
    facts = placed.placements.placed[0].facts
    (file,) = stored(folder)
    assert file.suffix == ".safetensors"
    for _ in range(2):
        assert torch.equal(family.run(placed.value), expected)
        assert placed.row.applied == "layerwise", placed.row.how
        assert placed.row.tiers["file"] >= facts.layer_bytes
        mm.unload_all_models()
    reason = placed.placements.placed[0].decision.host_reason
    assert reason.endswith(f"of it that no model file holds were written to {folder}")
    assert placed.row.host_why == reason
    assert sum(weight.nbytes for weight in load_file(file).values()) == facts.stored_bytes


def test_nobody_asked_so_nothing_is_written(folder: Path) -> None:
    family = models.FAMILIES["clip"]
    for wish in (asked(host="auto"), asked("resident")):
        assert place(family, family.make(), wish).row.applied == "resident"
    assert not stored(folder)


def test_what_a_model_file_holds_is_not_written(tmp_path: Path, folder: Path) -> None:
    family = models.FAMILIES["clip"]
    value = family.make()
    file = models.save(models.patcher_of(value).model, tmp_path / "model.safetensors")
    placed = place(family, value, asked(), file)
    assert placed.row.applied == "layerwise"
    assert not stored(folder)
    assert "no model file holds" not in placed.placements.placed[0].decision.host_reason


def changed_since_saved(value: Any, folder: Path) -> tuple[Path, list[torch.nn.Parameter]]:
    """Save a model and change one of its layers; return the file, and the weights that it does not hold any more."""
    model = models.patcher_of(value).model
    file = models.save(model, folder / "model.safetensors")
    changed = [p for name, p in model.named_parameters() if "layers.1." in name]
    with torch.no_grad():
        for parameter in changed:
            parameter += 0.25
    return file, changed


def test_layers_that_were_changed_in_memory_are_written_and_the_others_read_from_the_model_file(
    tmp_path: Path, folder: Path
) -> None:
    family = models.FAMILIES["clip"]
    value = family.make()
    file, changed = changed_since_saved(value, tmp_path)
    expected = family.run(value)
    placed = place(family, value, asked(), file)
    assert placed.placements.placed[0].facts.stored_bytes == sum(p.nbytes for p in changed)
    assert torch.equal(family.run(placed.value), expected)
    assert placed.row.tiers["file"] >= placed.placements.placed[0].facts.layer_bytes


def test_a_pickled_file_that_our_loader_loads_is_written_once_to_where_it_can_be_read_from(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = models.FAMILIES["clip"]
    wired = family.make()
    file = tmp_path / "encoder.pt"
    torch.save(models.patcher_of(wired).model.state_dict(), file)
    monkeypatch.setitem(folder_paths.folder_names_and_paths, "text_encoders", ([str(tmp_path)], {".pt"}))

    def load() -> tuple[Any]:
        value = family.make(number=1)
        models.patcher_of(value).model.load_state_dict(torch.load(file, weights_only=True))
        return (value,)

    (value,), placements, _ = load_and_place(load, ("clip",), {"clip_name": file.name}, asked(), Placements())
    assert len(stored(folder)) == 1
    assert torch.equal(family.run(value), family.run(wired))
    (row,) = placements.report().rows
    assert row.applied == "layerwise"
    assert row.tiers["file"] >= placements.placed[0].facts.layer_bytes
    assert "encoder.pt was loaded into memory" in placements.notes[0]


def test_models_of_the_same_content_share_a_file(folder: Path) -> None:
    family = models.FAMILIES["clip"]
    one, other, third = (place(family, family.make(number=number)) for number in (0, 0, 1))
    assert len(stored(folder)) == 2
    assert torch.equal(family.run(one.value), family.run(other.value))
    assert not torch.equal(family.run(one.value), family.run(third.value))


def test_a_lora_on_top_gives_the_bits_that_it_gives_without_us() -> None:
    family = models.FAMILIES["clip"]
    value = family.make()
    plain = family.run(value)
    patched = value.clone()
    patcher = models.patcher_of(patched)
    generator = torch.Generator().manual_seed(3)
    patches = {
        name: (torch.randn(p.shape, generator=generator) * 0.02,)
        for name, p in patcher.model.named_parameters()
        if p.ndim >= 2
    }
    assert patcher.add_patches(patches, 0.5)
    expected = family.run(patched)  # and ComfyUI leaves it so, loaded and patched
    placed = place(family, value)
    on_top = place(family, patched)
    for _ in range(2):
        assert torch.equal(family.run(placed.value), plain)
        assert torch.equal(family.run(on_top.value), expected)
    clone = placed.value.clone()
    assert models.patcher_of(clone).add_patches(patches, 0.5)
    assert torch.equal(family.run(clone), expected)


def test_when_nothing_of_ours_uses_it_any_more_it_is_in_memory_as_it_was(folder: Path) -> None:
    family = models.FAMILIES["clip"]
    value = family.make()
    model = models.patcher_of(value).model
    before = {name: (id(p), p.detach().clone()) for name, p in model.named_parameters()}
    expected = family.run(value)
    placed = place(family, value)
    family.run(placed.value)
    mm.unload_all_models()
    mapped = record_of(model).mapped
    assert mapped.resting_bytes
    del placed
    gc.collect()
    until = time.monotonic() + 20
    while mapped.resting_bytes and time.monotonic() < until:
        time.sleep(0.05)  # another thread brings them back
    assert not mapped.resting_bytes
    assert torch.equal(family.run(value), expected)
    for name, parameter in model.named_parameters():
        assert (type(parameter), id(parameter)) == (torch.nn.Parameter, before[name][0])
        assert torch.equal(parameter, before[name][1])
    again = place(family, value)
    assert torch.equal(family.run(again.value), expected)
    assert len(stored(folder)) == 1


@pytest.mark.parametrize("harm", ["torn", "changed", "emptied"])
def test_a_file_that_is_not_whole_any_more_is_written_anew(folder: Path, harm: str) -> None:
    family = models.FAMILIES["clip"]
    first = place(family, family.make())
    expected = family.run(first.value)
    (file,) = stored(folder)
    content = file.read_bytes()
    spoiled = {
        "torn": content[: len(content) // 2],
        "changed": content[:-9] + bytes([content[-9] ^ 1]) + content[-8:],
        "emptied": b"",
    }[harm]
    del first
    gc.collect()
    file.write_bytes(spoiled)
    again = place(family, family.make())
    assert torch.equal(family.run(again.value), expected)
    assert again.row.applied == "layerwise"
    assert file.read_bytes() == content
    assert stored(folder) == [file]


def test_a_full_disk_is_a_sentence_and_the_model_stays_in_memory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    _check_that_it_stays_in_memory("No space left on device")
    assert not stored(folder)


def test_too_little_room_is_seen_before_anything_is_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layer_store.store_now(), "_spare", 1 << 60)
    _check_that_it_stays_in_memory("0 B are free there beside")
    assert not stored(folder)


def test_a_folder_that_cannot_be_written_to_is_a_sentence(folder: Path) -> None:
    folder.parent.parent.write_text("a file where the folder should be")
    _check_that_it_stays_in_memory(f"could not be written to {folder}: ")


def _check_that_it_stays_in_memory(why: str) -> None:
    family = models.FAMILIES["clip"]
    value = family.make()
    expected = family.run(value)
    placed = place(family, value)
    assert placed.row.applied == "resident"
    assert why in placed.row.why
    assert torch.equal(family.run(placed.value), expected)
    with pytest.raises(StrictPolicyError, match="is strict"):
        place(family, family.make(), asked(strict=True))


def test_some_layers_that_cannot_be_written_are_a_limit_and_the_others_are_read_from_the_model_file(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = models.FAMILIES["clip"]
    value = family.make()
    file, _ = changed_since_saved(value, tmp_path)
    expected = family.run(value)
    monkeypatch.setattr(layer_store.store_now(), "_limit", 1)
    placed = place(family, value, asked(), file)
    assert placed.row.applied == "layerwise"
    assert "some of its layers are in no model file, and its" in placed.row.why
    assert torch.equal(family.run(placed.value), expected)
    with pytest.raises(StrictPolicyError, match="the layer store may take 1 B"):
        place(family, value, asked(strict=True), file)


def test_somebody_who_stops_the_prompt_stops_the_writing(folder: Path) -> None:
    family = models.FAMILIES["clip"]
    value = family.make()
    mm.interrupt_current_processing()
    with pytest.raises(mm.InterruptProcessingException):
        place(family, value)
    assert not stored(folder)
    assert place(family, value).row.applied == "layerwise"


def test_the_oldest_file_that_nobody_uses_makes_room(tmp_path: Path) -> None:
    store = LayerStore(tmp_path / "store", limit=2600, spare=0)  # two of these

    def file(number: int) -> Path:
        weights = {"w": torch.full((1000,), number, dtype=torch.uint8)}
        return store.file_of(weights, lambda _: None)[0]

    first, second = file(1), file(2)
    assert file(1) == first  # used last now
    third = file(3)
    assert (first.exists(), second.exists(), third.exists()) == (True, False, True)
    store.used_by(first, reader := WeightFile(first))
    fourth = file(4)
    assert (first.exists(), third.exists()) == (True, False)
    store.used_by(fourth, other := WeightFile(fourth))
    with pytest.raises(LayerStoreError, match="the layer store may take"):
        file(5)
    del reader, other
    file(5)
    assert not first.exists()


def test_stores_of_servers_that_are_gone_are_removed_and_those_of_others_are_not(folder: Path) -> None:
    machine, number, began = folder.name.rsplit("-", 2)
    parent = psutil.Process(os.getppid())
    kept = [
        folder.with_name(f"{machine}-{parent.pid}-{int(parent.create_time())}"),
        folder.with_name(f"another_{machine}-{number}-1"),
    ]
    gone = [folder.with_name(f"{machine}-{parent.pid}-1"), folder.with_name(f"{machine}-99999999-{began}")]
    for other in (*kept, *gone):
        other.mkdir(parents=True)
        (other / "some.safetensors").write_bytes(b"")
    family = models.FAMILIES["clip"]
    place(family, family.make())
    assert sorted(folder.parent.iterdir()) == sorted([folder, *kept])
