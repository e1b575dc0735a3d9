"""Layerwise on a legacy patcher of an accelerator: what ComfyUI plans with, and the same numbers.

The accelerator is `cpu:0`, see the `gpu` fixture.
"""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import comfy.model_management as mm
import comfy.model_patcher
import comfy.ops
import models
import pytest
import torch
from placing import PlacedObject, place, policy

MIB = 1024 * 1024


class Big(torch.nn.Module):
    """A diffusion model that takes room: `n` operations of one mebibyte."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.ops = torch.nn.ModuleList(comfy.ops.manual_cast.Linear(512, 512, bias=False) for _ in range(n))
        models.seed(self)


def load(patcher: Any, **kwargs: Any) -> None:
    mm.load_models_gpu([patcher], **kwargs)


@pytest.fixture
def accounted(
    gpu: SimpleNamespace, family: models.Family
) -> tuple[SimpleNamespace, models.Family, PlacedObject]:
    placed = place(family, family.make(), policy("layerwise"))
    gpu.used = lambda: sum(loaded.model.loaded_size() for loaded in mm.current_loaded_models)
    return gpu, family, placed


def test_numbers_are_equal_bit_for_bit(gpu: SimpleNamespace, family: models.Family) -> None:
    value = family.make()
    expected = family.run(value)
    mm.unload_all_models()
    placed = place(family, value, policy("layerwise"))
    assert torch.equal(family.run(placed.value), expected)
    row = placed.row
    assert "layers run on cpu:0 out of slots of" in row.how
    assert row.moved_bytes > 0


def test_comfyui_plans_with_the_slot_and_not_with_the_whole_model(
    accounted: tuple[SimpleNamespace, models.Family, PlacedObject],
) -> None:
    _, family, placed = accounted
    patcher = placed.patcher
    assert patcher.model_size() < placed.row.bytes
    assert patcher.loaded_size() == 0
    family.run(placed.value)
    assert 0 < patcher.loaded_size() <= patcher.model_size()


def test_encoding_a_prompt_does_not_evict_the_diffusion_model(gpu: SimpleNamespace) -> None:
    family = models.FAMILIES["clip"]
    big = comfy.model_patcher.ModelPatcher(Big(40), gpu.device, torch.device("cpu"))
    placed = place(family, family.make(), policy("layerwise"))
    gpu.used = lambda: sum(loaded.model.loaded_size() for loaded in mm.current_loaded_models)
    gpu.total = 41 * MIB
    load(big)
    assert big.loaded_size() == 40 * MIB
    family.run(placed.value)
    assert big.loaded_size() == 40 * MIB
    whole = place(family, family.make(), policy("resident"))
    family.run(whole.value)
    assert big.loaded_size() < 40 * MIB, "the same encoder whole takes room from it"


def test_unloading_gives_the_slot_back_and_unwraps(
    accounted: tuple[SimpleNamespace, models.Family, PlacedObject],
) -> None:
    _, family, placed = accounted
    family.run(placed.value)
    mm.unload_all_models()
    assert placed.patcher.loaded_size() == 0
    assert placed.row.tiers["slot"] == 0
    model = placed.patcher.model
    assert not any({"forward", "get_input_embeddings"} & set(m.__dict__) for m in model.modules())
    assert {p.device for p in model.parameters()} == {torch.device("cpu")}


def test_a_budget_lets_comfyui_keep_weights_on_the_device(gpu: SimpleNamespace) -> None:
    family = models.FAMILIES["vae"]
    value = family.make()
    expected = family.run(value)
    mm.unload_all_models()
    loaded = {}
    for budget in (None, "4MB", "8MB", "1GB"):
        placed = place(family, value, policy("layerwise", vram_budget=budget))
        assert torch.equal(family.run(placed.value), expected)
        loaded[budget] = placed.patcher.loaded_size()
        mm.unload_all_models()
    assert loaded[None] < loaded["4MB"] <= 4 * MIB < loaded["8MB"] <= 8 * MIB < loaded["1GB"]


def test_the_embedding_names_the_accelerator_although_its_table_stays_on_the_host(
    gpu: SimpleNamespace,
) -> None:
    """On 0.3.75 the device of the embedding decides where the whole encode runs."""
    family = models.FAMILIES["t5"]
    placed = place(family, family.make(), policy("layerwise"))
    family.run(placed.value)
    transformer = placed.patcher.model.clip_l.transformer
    ids = torch.tensor([[3, 4, 5]])
    stand_in = transformer.get_input_embeddings()
    assert stand_in.weight.device == gpu.device
    rows = stand_in(ids, out_dtype=torch.float32)
    mm.unload_all_models()
    table = transformer.get_input_embeddings()
    assert isinstance(table, torch.nn.Embedding)
    assert torch.equal(rows, table(ids, out_dtype=torch.float32))


def test_asking_for_the_cpu_computes_there_although_a_sibling_is_loaded(
    gpu: SimpleNamespace, family: models.Family
) -> None:
    value = family.make()
    expected = family.run(value)
    placed = place(family, value, policy("cpu"))
    assert torch.equal(family.run(placed.value), expected)
    assert "computes on the CPU" in placed.row.how
    assert {p.device for p in placed.patcher.model.parameters()} == {torch.device("cpu")}
    assert models.patcher_of(value).load_device == gpu.device, "the input object is not touched"


def test_a_dynamic_patcher_is_left_alone(gpu: SimpleNamespace) -> None:
    family = models.FAMILIES["clip"]
    value = family.make()

    class Dynamic(type(models.patcher_of(value))):  # type: ignore[misc]
        def is_dynamic(self) -> bool:
            return True

    models.patcher_of(value).__class__ = Dynamic
    placed = place(family, value, policy("layerwise"))
    assert "so it is left to ComfyUI" in placed.row.why
    assert placed.row.applied == "comfyui"
    patcher = placed.patcher
    assert not patcher.attachments
    assert not patcher.injections
    assert not {"partially_load", "partially_unload", "model_size", "loaded_size"} & set(patcher.__dict__)


@pytest.mark.parametrize("number", range(5))
def test_what_is_reported_as_loaded_is_what_is_there_whatever_happens(
    gpu: SimpleNamespace, number: int
) -> None:
    """Loads, clones, evictions and patches in random order: 0 ≤ loaded_size ≤ model_size, and nothing overflows."""
    rng = random.Random(number)
    family = models.FAMILIES["clip"]
    value = family.make()
    key = "clip_l.transformer.text_model.encoder.layers.1.mlp.fc1.weight"
    placed = place(family, value, policy("layerwise", vram_budget=rng.choice(["100KB", "1MB", "auto"])))
    big = comfy.model_patcher.ModelPatcher(Big(20), gpu.device, torch.device("cpu"))
    live = [placed.value]
    gpu.total = 22 * MIB
    gpu.used = lambda: _really_loaded(models.patcher_of(value).model, big.model, placed)
    for _ in range(25):
        match rng.choice(["big", "encode", "clone", "patch", "drop", "free", "unload", "plain"]):
            case "big":
                load(big, memory_required=rng.choice([0, 4]) * MIB)
            case "encode":
                models.encode(rng.choice(live))
            case "clone":
                live.append(rng.choice(live).clone())
            case "patch":
                live.append(rng.choice(live).clone())
                live[-1].add_patches({key: (torch.zeros(128, 64),)}, 1.0)
            case "drop" if len(live) > 1:
                live.pop(rng.randrange(len(live)))
            case "free":
                mm.free_memory(rng.choice([1, 10, 22]) * MIB, gpu.device)
            case "unload":
                mm.unload_all_models()
            case "plain":
                models.encode(value)
        for loaded in mm.current_loaded_models:
            if loaded.model is not None:
                assert 0 <= loaded.model.loaded_size() <= loaded.model.model_size()
        assert gpu.used() <= gpu.total


def _really_loaded(*parts: Any) -> int:
    *modules, placed = parts
    slot = placed.placements.placed[0].row().tiers["slot"]
    return sum(module.model_loaded_weight_memory for module in modules) + slot
