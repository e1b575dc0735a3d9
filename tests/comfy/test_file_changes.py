"""A model file that changes while a placed component is in use, on a machine that computes on the CPU."""

from __future__ import annotations

import gc
import os
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import comfy.model_management as mm
import models
import pytest
import torch
from placing import PlacedObject, place, policy
from safetensors.torch import load_file

from offload_runtime.adapter import at_rest
from offload_runtime.adapter.file_layers import FileLayers
from offload_runtime.adapter.host_memory import HostMemory
from offload_runtime.adapter.record import record_of
from offload_runtime.adapter.structure import find_stacks
from offload_runtime.errors import WeightFileError


def _cut_off(file: Path) -> None:
    os.truncate(file, 4096)


def _write_others(file: Path) -> None:
    """Another model of the same geometry, written into the file that is there."""
    content = file.read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    with open(file, "r+b") as opened:
        opened.seek(header)
        opened.write(content[header:][::-1])


def _replace(file: Path) -> None:
    file.with_suffix(".part").write_bytes(b"another file")
    os.replace(file.with_suffix(".part"), file)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


@pytest.mark.parametrize("change", [_replace, Path.unlink, os.utime])
@pytest.mark.parametrize("loaded", [True, False])
def test_a_file_that_is_replaced_or_deleted_changes_nothing(
    family: models.Family, file: Path, change: Callable[[Path], None], loaded: bool
) -> None:
    placed = place(family, family.make(), policy("layerwise"), file.parent)
    expected = family.run(placed.value)
    if not loaded:
        mm.unload_all_models()
    change(file)
    assert torch.equal(family.run(placed.value), expected)
    assert placed.row.applied == "layerwise"


@pytest.mark.parametrize("change", [_cut_off, _write_others])
@pytest.mark.parametrize("loaded", [True, False])
def test_weights_that_are_gone_are_an_error_that_says_what_to_do(
    family: models.Family, file: Path, change: Callable[[Path], None], loaded: bool
) -> None:
    value = family.make()
    placed = place(family, value, policy("layerwise"), file.parent)
    expected, content = family.run(placed.value), file.read_bytes()
    if not loaded:
        mm.unload_all_models()
    change(file)
    for unplaced in (placed.value, value):
        with pytest.raises(
            WeightFileError, match=r"model\.safetensors has changed on disk.*Choose Unload Models"
        ):
            family.run(unplaced)
    file.write_bytes(content)
    assert torch.equal(family.run(placed.value), expected)
    assert torch.equal(family.run(value), expected)


def test_all_other_ways_to_the_weights_are_the_same_error(file: Path) -> None:
    """A node that saves, a LoRA, a merge into another model."""
    family = models.FAMILIES["clip"]
    placed = place(family, family.make(), policy("layerwise"), file.parent)
    family.run(placed.value)
    key = "clip_l.transformer.text_model.encoder.layers.1.mlp.fc1.weight"
    with_lora = placed.value.clone()
    with_lora.add_patches({key: (torch.full((128, 64), 0.02),)}, 1.0)
    merged = family.make(number=1)
    merged.add_patches({k: v for k, v in placed.value.get_key_patches().items() if k == key}, 0.5, 0.5)
    _cut_off(file)
    for read in (
        lambda: {name: t + 0 for name, t in placed.patcher.model_state_dict().items()},
        lambda: family.run(with_lora),
        lambda: family.run(merged),
    ):
        with pytest.raises(WeightFileError):
            read()


def test_a_use_leaves_every_weight_at_rest(family: models.Family, file: Path) -> None:
    placed = place(family, family.make(), policy("layerwise"), file.parent)
    resting = placed.row.tiers["file"]
    for _ in range(2):
        family.run(placed.value)
        assert placed.row.tiers["file"] == resting
        mm.unload_all_models()
        assert placed.row.tiers["file"] == resting


def test_after_somebody_else_has_used_them_they_rest_again(family: models.Family, file: Path) -> None:
    value = family.make()
    placed = place(family, value, policy("layerwise"), file.parent)
    expected, resting = family.run(placed.value), placed.row.tiers["file"]
    assert torch.equal(family.run(value), expected)
    assert all(parameter.isfinite().all() for parameter in placed.patcher.model.parameters())
    assert placed.row.tiers.get("file", 0) == 0
    assert torch.equal(family.run(placed.value), expected)
    assert placed.row.tiers["file"] == resting


class Delay:
    """Stands in for the time that passes before weights are brought back: it passes when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._threads: list[threading.Thread] = []
        self._over = threading.Event()
        monkeypatch.setattr(at_rest, "time", SimpleNamespace(sleep=lambda _: self._over.wait(60)))
        monkeypatch.setattr(at_rest, "_thread", SimpleNamespace(start_new_thread=self._start))

    def _start(self, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        self._threads.append(threading.Thread(target=work, args=arguments))
        self._threads[-1].start()

    def pass_by(self) -> None:
        """Let the time pass, and wait until nobody waits for it any more."""
        self._over.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()


@pytest.fixture
def delay(monkeypatch: pytest.MonkeyPatch) -> Delay:
    return Delay(monkeypatch)


def test_what_is_about_to_be_placed_again_does_not_come_back_into_memory(
    family: models.Family, file: Path, delay: Delay
) -> None:
    """The loader of the prompt before goes when the next one begins, and that may look into several large files."""
    value = family.make()
    model = models.patcher_of(value).model
    placed = place(family, value, policy("layerwise"), file.parent)
    family.run(placed.value)
    resting = record_of(model).mapped.resting_bytes
    mm.unload_all_models()
    del placed
    gc.collect()
    found = FileLayers(model, find_stacks(model), [file])
    delay.pass_by()
    found.lay()
    assert record_of(model).mapped.resting_bytes == resting > 0


def test_when_the_last_placed_clone_is_gone_the_file_is_not_needed_any_more(
    family: models.Family, file: Path, delay: Delay
) -> None:
    value = family.make()
    model = models.patcher_of(value).model
    placed = place(family, value, policy("layerwise"), file.parent)
    expected = family.run(placed.value)
    mm.unload_all_models()
    del placed
    gc.collect()
    delay.pass_by()
    assert not any(map(record_of(model).mapped.holds, model.parameters()))
    if sys.platform == "linux":
        assert str(file) not in Path("/proc/self/maps").read_text()
        assert str(file) not in [os.path.realpath(fd) for fd in Path("/proc/self/fd").iterdir()]
    _cut_off(file)
    assert torch.equal(family.run(value), expected)


def test_as_long_as_one_placed_clone_is_left_they_rest(file: Path, delay: Delay) -> None:
    family = models.FAMILIES["clip"]
    first = place(family, family.make(), policy("layerwise"), file.parent)
    expected, resting = family.run(first.value), first.row.tiers["file"]
    clone = first.value.clone()
    second = place(family, first.value, policy("layerwise"))
    del first, clone
    mm.unload_all_models()
    gc.collect()
    delay.pass_by()
    assert second.row.tiers["file"] == resting
    assert torch.equal(family.run(second.value), expected)


def test_a_clone_that_is_placed_meanwhile_keeps_them_at_rest(file: Path, delay: Delay) -> None:
    family = models.FAMILIES["clip"]
    value = family.make()
    del_me = place(family, value, policy("layerwise"), file.parent)
    resting = del_me.row.tiers["file"]
    del del_me
    gc.collect()
    again = place(family, value, policy("layerwise"))
    delay.pass_by()
    assert again.row.tiers["file"] == resting


def test_without_memory_for_them_they_rest_on_and_are_there_for_whoever_asks(
    file: Path, delay: Delay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(at_rest, "host_memory", lambda: HostMemory(1 << 34, 1 << 20))
    family = models.FAMILIES["clip"]
    value = family.make()
    model = models.patcher_of(value).model
    placed = place(family, value, policy("layerwise"), file.parent)
    expected = family.run(placed.value)
    mm.unload_all_models()
    del placed
    gc.collect()
    delay.pass_by()
    assert any(map(record_of(model).mapped.holds, model.parameters()))
    assert torch.equal(family.run(value), expected)


def test_a_model_that_goes_with_its_last_clone_is_not_read_first(
    file: Path, delay: Delay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another workflow is opened: bringing the old one into memory first would be the end of a small machine."""
    monkeypatch.setattr(at_rest, "host_memory", lambda: pytest.fail("the model is gone"))
    family = models.FAMILIES["clip"]
    value = family.make()
    placed = place(family, value, policy("layerwise"), file.parent)
    family.run(placed.value)
    mm.unload_all_models()
    model = weakref.ref(placed.patcher.model)
    del placed
    gc.collect()
    assert model() is not None
    del value
    gc.collect()
    assert model() is None
    delay.pass_by()


def _place_views(family: models.Family, file: Path, value: Any) -> PlacedObject:
    """Place an object whose loader left the weights in the file, as safetensors hands them out."""
    model = models.patcher_of(value).model
    loaded = load_file(models.save(model, file))
    for name, parameter in model.named_parameters():
        parameter.data = loaded[name]
    return PlacedObject(family.slot, value, policy("layerwise"), [file])


def _replace_by_a_copy(file: Path) -> None:
    """As whoever downloads or synchronises it again."""
    file.with_suffix(".part").write_bytes(file.read_bytes())
    os.replace(file.with_suffix(".part"), file)


@pytest.mark.parametrize("change", [_replace, Path.unlink, os.utime, _replace_by_a_copy])
@pytest.mark.parametrize("used", [True, False])
def test_views_of_the_file_do_not_need_it_to_stay_untouched(
    family: models.Family, file: Path, change: Callable[[Path], None], delay: Delay, used: bool
) -> None:
    value = family.make()
    expected = family.run(value)
    placed = _place_views(family, file, value)
    if used:
        assert torch.equal(family.run(placed.value), expected)
        delay.pass_by()
    change(file)
    assert torch.equal(family.run(placed.value), expected)
    assert placed.row.applied == "layerwise"
    delay.pass_by()
    state = {name: tensor + 0 for name, tensor in placed.patcher.model.state_dict().items()}
    fresh = models.patcher_of(family.make()).model.state_dict()
    assert all(torch.equal(state[name], fresh[name]) for name in fresh)


def test_views_of_a_file_that_changes_before_they_were_used_are_an_error(
    family: models.Family, file: Path, delay: Delay
) -> None:
    placed = _place_views(family, file, family.make())
    _write_others(file)
    with pytest.raises(
        WeightFileError, match=r"model\.safetensors has changed on disk.*Choose Unload Models"
    ):
        family.run(placed.value)
    delay.pass_by()
