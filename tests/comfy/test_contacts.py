"""What we rely on of ComfyUI: all of it is there, and what is not is a sentence."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import comfy.model_management as mm
import comfy.model_patcher
import models
import pytest
import torch
from placing import place, policy
from torch import nn

from offload_runtime.adapter import contacts, hardware
from offload_runtime.adapter.account import OVERRIDES
from offload_runtime.adapter.contacts import CONTACTS, OBJECTS, Contact, Group, missing, missing_on
from offload_runtime.errors import AttachError, IncompatibleError

ROOT = Path(__file__).resolve().parents[2]
HAS_DYNAMIC = hasattr(comfy.model_patcher, "ModelPatcherDynamic")
NEWER = {"comfy.memory_management", "comfy_aimdo.model_vbar.ModelVBAR"}
"""Places that ComfyUI without dynamic VRAM does not have, and need not have."""


@pytest.fixture(autouse=True)
def _looked_up_anew() -> Iterator[None]:
    """What is lacked is remembered for as long as ComfyUI runs; here it changes."""
    missing.cache_clear()
    yield
    missing.cache_clear()


class _Without(ModuleType):
    """A module that lacks something; ComfyUI goes on with the real one."""

    def __init__(self, real: ModuleType, lacked: str, **instead: Any) -> None:
        super().__init__(real.__name__)
        self.__dict__.update(instead)
        self._real, self._lacked = real, lacked

    def __getattr__(self, name: str) -> Any:
        if name == self._lacked:
            raise AttributeError(name)
        return getattr(self._real, name)


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Let whoever looks a module up find one that lacks a name, or whose class lacks it."""

    def stand_in(place: str, name: str) -> None:
        kind: Any = contacts._find(place)
        if isinstance(kind, ModuleType):
            monkeypatch.setitem(sys.modules, place, _Without(kind, name))
        else:
            module, _, short = place.rpartition(".")
            members = {k: v for base in reversed(kind.__mro__[:-1]) for k, v in vars(base).items()}
            for special in ("__dict__", "__weakref__"):
                members.pop(special, None)
            del members[name]
            other = type(short, (), members)
            monkeypatch.setitem(
                sys.modules, module, _Without(importlib.import_module(module), "", **{short: other})
            )

    return stand_in


def _of_the_version(*groups: Group) -> list[Any]:
    """Return (group, place, name) of whatever belongs to the version and is found on it as such."""
    return [
        pytest.param(group, contact.place, name, id=f"{group.name}-{contact.place.rpartition('.')[2]}.{name}")
        for group in groups
        for contact in CONTACTS[group]
        if contact.place not in OBJECTS and not contact.without
        for name, _, _ in contact.each()
        if hasattr(contacts._find(contact.place), name)
    ]


# The table and ComfyUI ----------------------------------------------------------------------------


@pytest.mark.parametrize("group", Group)
def test_this_comfyui_has_all_that_we_rely_on(group: Group) -> None:
    if group is not Group.DYNAMIC or HAS_DYNAMIC:
        assert missing(group) == ""
    optional = [c for c in CONTACTS[group] if c.without and c.place not in OBJECTS]
    absent = {lack for contact in optional for lack in contacts._lacks(contact)}
    assert absent <= (set() if HAS_DYNAMIC else NEWER)


@pytest.mark.parametrize("group", [g for g in Group if g is not Group.DYNAMIC])
def test_every_component_has_all_that_we_rely_on(group: Group, family: models.Family) -> None:
    value = family.make()
    assert missing_on(group, models.patcher_of(value), family.slot, value) == ""


def test_what_a_version_only_has_on_its_instances_is_found() -> None:
    class Patcher:
        def __init__(self) -> None:
            self.given = 1

        def reads(self) -> Any:
            return self.asked  # type: ignore[attr-defined]

    assert contacts._has(Patcher, "given")
    assert not contacts._has(Patcher, "asked")


def test_a_parameter_counts_and_so_does_one_more_where_ours_is_called() -> None:
    class ModelPatcher:
        def load(self, device: Any, extra_memory: int = 0) -> None: ...

    def lacks(names: str) -> list[str]:
        sys.modules[place] = module = ModuleType(place)
        module.ModelPatcher = ModelPatcher  # type: ignore[attr-defined]
        try:
            return list(contacts._lacks(Contact(f"{place}.ModelPatcher", names, "")))
        finally:
            del sys.modules[place]

    place = "comfyui_as_it_may_be"
    assert lacks("load(device,extra_memory!)") == []
    assert lacks("load(device)") == []
    assert lacks("load(keep)") == ["ModelPatcher.load as this pack knows it (keep)"]
    assert lacks("load(device!)") == ["ModelPatcher.load as this pack knows it (more than device)"]


# A missing one ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("group", "place_of", "name"), _of_the_version(Group.EVERY, Group.STREAM, Group.CPU))
def test_without_a_contact_the_component_is_left_to_comfyui_and_runs(
    gpu: Any, without: Callable[[str, str], None], group: Group, place_of: str, name: str
) -> None:
    clip = models.clip()
    expected = models.encode(clip)
    without(place_of, name)
    placed = place(models.FAMILIES["clip"], clip, policy("cpu" if group is Group.CPU else "layerwise"))
    lacked = f"this ComfyUI has no {place_of.rpartition('.')[2]}.{name}"
    assert placed.row.applied == "comfyui"
    assert lacked in placed.row.why
    assert "so it is left to ComfyUI" in placed.row.why
    assert torch.equal(models.encode(placed.value), expected)
    assert placed.patcher.load_device == gpu.device
    # Where only streaming lacks something, a text encoder still computes where it is loaded.
    assert {type(carried).__name__ for carried in placed.patcher.attachments.values()} <= {"NamedDevice"}
    assert not set(OVERRIDES) & set(placed.patcher.__dict__)


def test_without_a_whole_module_the_sentence_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "comfy.patcher_extension", None)  # what a removed one looks like
    monkeypatch.delattr(comfy, "patcher_extension")
    assert missing(Group.EVERY) == "this ComfyUI has no comfy.patcher_extension.CallbacksMP"


@pytest.mark.parametrize(("group", "place_of", "name"), _of_the_version(Group.LOADER))
def test_without_what_everything_needs_there_is_one_sentence(
    without: Callable[[str, str], None], group: Group, place_of: str, name: str
) -> None:
    without(place_of, name)
    with pytest.raises(
        IncompatibleError, match=rf"cannot place anything, because this ComfyUI has no \w+\.{name}"
    ):
        contacts.require()


def test_the_loader_says_so_where_the_adapter_cannot_even_be_imported() -> None:
    code = f"""
import os, sys
sys.path[:0] = [os.environ["COMFYUI_PATH"], {str(ROOT / "tests" / "comfy")!r}]
import comfy.cli_args
comfy.cli_args.args.cpu = True
import comfy.sd, comfy.patcher_extension
from graphs import Graph, node, register
register()
del comfy.patcher_extension.CallbacksMP
for _ in range(2):
    try:
        Graph().run({{"1": node("Loader"), "2": node("Sink", value=["1", 4])}})
    except RuntimeError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ)
    sentence = (
        "Layerwise Offload cannot place anything, because this ComfyUI has no patcher_extension.CallbacksMP; update "
        "the pack or ComfyUI, or bypass the pack's nodes"
    )
    assert done.stdout.splitlines()[-2:] == [sentence] * 2, done.stderr


def test_a_patcher_of_another_kind_is_an_error_before_anything_is_cloned() -> None:
    class Thin:
        model = nn.Linear(2, 2)
        load_device = torch.device("cpu")

    vae = models.vae()
    vae.patcher = Thin()
    with pytest.raises(AttachError, match="the vae input cannot be placed, because its patcher has no clone"):
        place(models.FAMILIES["vae"], vae, policy("resident"))


@pytest.mark.parametrize("wish", ["auto", "resident", "layerwise", "cpu"])
def test_a_patcher_that_can_carry_nothing_is_left_as_it_is(gpu: Any, wish: str) -> None:
    class Thin:
        def __init__(self, model: nn.Module) -> None:
            self.model, self.load_device = model, gpu.device

        def clone(self) -> Thin:
            return Thin(self.model)

    vae = models.vae()
    vae.patcher = Thin(vae.patcher.model)
    placed = place(models.FAMILIES["vae"], vae, policy(wish))
    assert placed.row.applied == "comfyui"
    assert placed.row.how == "left to ComfyUI, because its patcher has no attachments"
    assert vars(placed.patcher) == vars(vae.patcher)


def test_a_patcher_that_lacks_what_streaming_needs_is_named_before_a_load(gpu: Any) -> None:
    patcher = models.clip().patcher
    del patcher.forced_hooks
    assert missing_on(Group.STREAM, patcher) == "its patcher has no forced_hooks"


def test_a_patcher_that_lists_its_operations_otherwise_is_left_alone(gpu: Any) -> None:
    class Listing(comfy.model_patcher.ModelPatcher):
        def _load_list(self, *args: Any, **kwargs: Any) -> Any:
            return [] if getattr(self, "loads", False) else [("a name", 1, nn.Linear(2, 2))]

    clip = models.clip()
    clip.patcher.__class__ = Listing
    placed = place(models.FAMILIES["clip"], clip, policy("layerwise"))
    assert placed.row.applied == "comfyui"
    assert "but its patcher lists its operations (_load_list) in a form" in placed.row.why


@pytest.mark.parametrize("name", ["pin_memory", "TOTAL_PINNED_MEMORY"])
def test_without_comfyuis_account_of_pins_nothing_is_pinned(
    gpu: Any, without: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(mm, "MAX_PINNED_MEMORY", 1 << 40)
    pinned: list[torch.Tensor] = []  # by ComfyUI: single weights, as it does without us
    monkeypatch.setattr(mm, "pin_memory", lambda tensor: pinned.append(tensor))
    without("comfy.model_management", name)
    clip = models.clip()
    expected = models.encode(clip)
    placed = place(models.FAMILIES["clip"], clip, policy("layerwise"))
    assert torch.equal(models.encode(placed.value), expected)
    assert placed.row.applied == "layerwise"
    assert not [block for block in pinned if block.dtype == torch.uint8]
    assert hardware.machine_facts().pin_limit == 0


@pytest.mark.parametrize("name", ["minimum_inference_memory", "vram_state"])
def test_facts_that_comfyui_does_not_tell_are_taken_for_what_is_usual(
    gpu: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(hardware, "mm", _Without(mm, name))
    facts = hardware.machine_facts()
    assert facts.inference_reserve == (1278423859 if name == "minimum_inference_memory" else 0)
    assert not facts.shared_memory


@pytest.mark.parametrize("name", ["get_executing_context", "ExecutionContext"])
def test_without_the_executors_word_a_component_is_placed_all_the_same(
    gpu: Any, without: Callable[[str, str], None], name: str
) -> None:
    without("comfy_execution.utils", name)
    clip = models.clip()
    expected = models.encode(clip)
    placed = place(models.FAMILIES["clip"], clip, policy("layerwise"))
    assert torch.equal(models.encode(placed.value), expected)
    assert placed.row.applied == "layerwise"
