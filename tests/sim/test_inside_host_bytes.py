"""Host bytes: what the plan says that a component takes of the host is what it takes once it has run."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from . import comfy_models
from .comfyui import ComfyUI
from .on_card import OnCard
from .placing import BIG, MIB, PlacedObject, end_node, place, small_clip
from .quantised import Quantised, forget_constants, formats

pytestmark = pytest.mark.usefixtures("_inference_mode")


def run(placed: PlacedObject) -> torch.Tensor:
    return comfy_models.encode(placed.value, "fox")[0]


def layer_bytes(placed: PlacedObject) -> int:
    return sum(p.nbytes for name, p in placed.patcher.model.named_parameters() if ".layers." in name)


def pinned_by(patcher: Any) -> int:
    """What the card knows to be page-locked of a model's own weights."""
    return sum(p.nbytes for p in patcher.model.parameters() if p.device.type == "cpu" and p.is_pinned())


CASES = {
    "pinned": ("layerwise", "pinned"),
    "staged": ("layerwise", "staged"),
    "mapped": ("layerwise", "mapped"),
    "resident": ("resident", "auto"),
    "offload": ("offload", "auto"),
    "auto": ("auto", "auto"),
    "cpu": ("cpu", "auto"),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("pins", [True, False], ids=["pins", "no_pins"])
def test_a_component_takes_what_was_planned(
    comfy: ComfyUI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str, *, pins: bool
) -> None:
    comfy.sim.cap = BIG
    if not pins:
        monkeypatch.setattr(comfy.mm, "MAX_PINNED_MEMORY", -1)
    wish, host = CASES[case]
    wired = small_clip(comfy)
    files = [tmp_path / "model.safetensors"] if case == "mapped" else []
    for file in files:
        save_file({name: t.clone() for name, t in wired.patcher.model.state_dict().items()}, file)
    placed = place("clip", wired, wish, host=host, files=files)
    planned = placed.row.host_planned
    size = placed.row.bytes
    for _ in range(2):
        run(placed)
        end_node(comfy)
        row = placed.row
        if wish == "offload":  # what it takes between its uses
            comfy.mm.unload_all_models()
            row = placed.row
        assert row.host_now == planned
        assert any(line.endswith("as planned") for line in row.lines())
        on_card = sum(count for place, count in row.tiers.items() if place.startswith("sim"))
        assert planned.mapped + planned.pinned + planned.pageable + on_card == size
    assert planned.pinned == pinned_by(placed.patcher)
    layers = layer_bytes(placed)
    assert (planned.pinned >= layers) is (case == "pinned" and pins)
    assert (planned.mapped >= layers) is (case == "mapped")
    assert comfy.sim.pinned < planned.pinned + MIB


def decode(placed: PlacedObject) -> None:
    placed.value.decode(torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(1)))


@pytest.mark.parametrize("host", ["pinned", "staged"])
@pytest.mark.parametrize("kind", ["t5", "vae"])
def test_other_components_take_what_was_planned(comfy: ComfyUI, kind: str, host: str) -> None:
    comfy.sim.cap = BIG
    made = comfy_models.t5_base(comfy) if kind == "t5" else comfy_models.kl_vae(comfy)
    placed = place("clip" if kind == "t5" else "vae", made, host=host)
    for _ in range(2):
        run(placed) if kind == "t5" else decode(placed)
        assert placed.row.host_now == placed.row.host_planned
        assert placed.row.host_now.pinned == pinned_by(placed.patcher)


@pytest.mark.parametrize("host", ["pinned", "staged"])
@pytest.mark.parametrize("format", ["float8_e4m3fn", "nvfp4"])
def test_quantised_weights_take_their_bytes(comfy: ComfyUI, format: str, host: str) -> None:
    if format not in formats():
        pytest.skip(f"This ComfyUI does not know {format}.")
    forget_constants()
    comfy.sim.cap = BIG
    model = Quantised(format)
    made = getattr(comfy.model_patcher, "CoreModelPatcher", comfy.model_patcher.ModelPatcher)
    card = OnCard(comfy, model, made(model, comfy.sim.device, torch.device("cpu")))
    placed = place("model", card.wired, host=host)
    for _ in range(2):
        card(placed.value)
        assert placed.row.host_now == placed.row.host_planned
        assert placed.row.host_now.pinned + placed.row.host_now.pageable == placed.row.bytes


@pytest.mark.parametrize("budget", ["4MB", "5MB", "6MB"])
@pytest.mark.parametrize("host", ["pinned", "staged"])
def test_what_a_budget_keeps_on_the_card_takes_nothing_here(comfy: ComfyUI, budget: str, host: str) -> None:
    """To a small part of the component: whole operations stay, and a thirty-second more or less moves none."""
    comfy.sim.cap = BIG
    placed = place("clip", small_clip(comfy), host=host, vram_budget=budget)
    run(placed)
    planned, now = placed.row.host_planned, placed.row.host_now
    assert now.pinned <= (layer_bytes(placed) if host == "pinned" else MIB)
    near = pytest.approx(planned.pinned + planned.pageable, abs=placed.row.bytes / 16)
    assert now.pinned + now.pageable == near


@pytest.mark.parametrize("before", [None, "pinned", "staged"])
@pytest.mark.parametrize("kept", [True, False], ids=["cached", "dropped"])
@pytest.mark.parametrize("wish", ["resident", "auto", "offload"])
def test_what_fits_and_stays_takes_no_pinned_memory(
    comfy: ComfyUI, wish: str, before: str | None, *, kept: bool
) -> None:
    """Nor when it was streamed before, whether or not a cache keeps that placement."""
    comfy.sim.cap = BIG
    wired = small_clip(comfy)
    earlier = place("clip", wired, host=before) if before is not None else None
    expected = run(earlier) if earlier is not None else comfy_models.encode(wired, "fox")[0]
    assert comfy.sim.pinned > MIB or before != "pinned"
    if not kept:
        del earlier
        gc.collect()
    placed = place("clip", wired, wish, mode="manual")
    for _ in range(2):
        assert torch.equal(run(placed), expected)
        end_node(comfy)
        comfy.sim.synchronize()
    assert comfy.sim.pinned == 0
    assert placed.row.host_now.pinned == 0
    comfy.mm.unload_all_models()
    assert comfy.sim.pinned == 0


def test_a_layerwise_component_that_fits_in_its_budget_is_not_pinned(comfy: ComfyUI) -> None:
    comfy.sim.cap = BIG
    placed = place("clip", small_clip(comfy), vram_budget="64MB")
    run(placed)
    assert placed.row.applied == "resident"
    assert comfy.sim.pinned == 0
    assert placed.row.host_now == placed.row.host_planned


@pytest.mark.parametrize("wish", ["resident", "layerwise", "auto"])
def test_dynamic_vram_pins_copies_and_the_report_counts_them(comfy: ComfyUI, wish: str) -> None:
    """Whatever the placement: ComfyUI keeps a pinned copy of what it brings to the card, beside the weight."""
    if not comfy.has_dynamic:
        pytest.skip("This ComfyUI has no dynamic VRAM (it came after 0.3.75).")
    comfy.enable_dynamic()
    comfy.sim.cap = BIG
    placed = place("clip", small_clip(comfy), wish)
    assert placed.row.host_planned is None
    run(placed)
    end_node(comfy)
    now = placed.row.host_now
    assert now.pinned == pytest.approx(comfy.sim.pinned, abs=MIB)
    assert any("planned ComfyUI's choice; now " in line for line in placed.row.lines())
