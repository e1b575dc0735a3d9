"""What is decided is what happens, on the CPU: a file that holds nearly nothing, strictness, one model placed twice."""

from __future__ import annotations

import gc
from pathlib import Path

import models
import pytest
import torch
from placing import SOURCE, PlacedObject, place, policy
from safetensors.torch import save_file

from offload_runtime.adapter import Placements, apply_policy
from offload_runtime.errors import StrictPolicyError
from offload_runtime.policy import Policy

CLIP = models.FAMILIES["clip"]
STRICT = Policy.from_widgets(SOURCE, strict="on")


def norms_only(model: torch.nn.Module, path: Path) -> Path:
    """Write a file that has a few small weights of every layer."""
    weights = {
        name: p.detach().clone() for name, p in model.named_parameters() if name.endswith("norm1.bias")
    }
    assert weights
    save_file(weights, path)
    return path


def test_a_file_that_holds_nearly_nothing_is_not_read_layer_by_layer(tmp_path: Path) -> None:
    value = CLIP.make()
    model = models.patcher_of(value).model
    file = norms_only(model, tmp_path / "norms.safetensors")
    expected = CLIP.run(value)
    with pytest.raises(StrictPolicyError, match=r"norms.safetensors.* holds the same weights"):
        PlacedObject(CLIP.slot, value, policy("layerwise").extended(STRICT), [file])
    placed = PlacedObject(CLIP.slot, value, policy("layerwise"), [file])
    assert torch.equal(CLIP.run(placed.value), expected)
    assert (placed.row.decided, placed.row.applied) == ("resident", "resident")
    assert placed.row.tiers == {"memory": placed.row.bytes, "slot": 0}


def test_a_layer_of_which_the_file_holds_little_stays_in_memory_and_the_bytes_are_told(
    tmp_path: Path,
) -> None:
    """A file that has all but the large weights of one layer: the other layers are read from it."""
    value = CLIP.make()
    model = models.patcher_of(value).model
    expected = CLIP.run(value)
    last = max(
        int(n.split(".layers.")[1].split(".")[0]) for n, _ in model.named_parameters() if ".layers." in n
    )
    weights = {
        name: p.detach().clone()
        for name, p in model.named_parameters()
        if f".layers.{last}." not in name or p.dim() < 2
    }
    save_file(weights, tmp_path / "most.safetensors")
    placed = PlacedObject(CLIP.slot, value, policy("layerwise"), [tmp_path / "most.safetensors"])
    assert torch.equal(CLIP.run(placed.value), expected)
    row = placed.row
    assert f"{last} of {last + 1} layers run" in row.how
    in_last = sum(p.nbytes for n, p in model.named_parameters() if f".layers.{last}." in n)
    assert row.tiers["memory"] >= in_last
    assert row.tiers["memory"] + row.tiers["file"] == row.bytes


def test_strict_refuses_what_would_not_happen_and_only_that(tmp_path: Path) -> None:
    value = CLIP.make()
    half = CLIP.make()
    models.patcher_of(half).model.bfloat16()
    file = models.save(models.patcher_of(value).model, tmp_path / "model.safetensors")
    for wish in ("resident", "cpu"):
        PlacedObject(CLIP.slot, value, policy(wish).extended(STRICT), [file])
    PlacedObject(CLIP.slot, value, policy("layerwise").extended(STRICT), [file])
    with pytest.raises(StrictPolicyError, match="leaves only the CPU"):
        PlacedObject(CLIP.slot, value, policy("offload").extended(STRICT), [file])
    with pytest.raises(StrictPolicyError, match="nothing would be gained"):
        PlacedObject(CLIP.slot, half, policy("layerwise").extended(STRICT), [file])
    assert not models.patcher_of(half).attachments


def test_one_model_in_two_loaders_in_a_row_is_one_row_and_the_later_one_says_whom_it_replaced(
    tmp_path: Path,
) -> None:
    value = CLIP.make()
    file = models.save(models.patcher_of(value).model, tmp_path / "model.safetensors")
    expected = CLIP.run(value)
    out, placements = {"clip": value}, Placements()
    for wish in ("layerwise", "resident", "layerwise", "resident"):  # four rounds of a loop
        out, placements = apply_policy(policy(wish), {"clip": out["clip"]}, {"clip": [file]}, placements)
        assert torch.equal(CLIP.run(out["clip"]), expected)
        (row,) = placements.report().rows
        assert (row.component, row.applied) == ("text_encoder", wish)
    assert "it replaces layerwise from an earlier loader" in row.why
    other, both = apply_policy(policy("layerwise"), {"clip": CLIP.make(number=7)}, {}, placements)
    assert [row.component for row in both.report().rows] == ["text_encoder", "text_encoder_2"]
    del other


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_policies_on_one_model_do_not_mix(tmp_path: Path, order: tuple[int, int]) -> None:
    value = CLIP.make()
    expected = CLIP.run(value)
    wishes = ["layerwise", "resident"]
    file = models.save(models.patcher_of(value).model, tmp_path / "model.safetensors")
    placed = {
        wish: PlacedObject(CLIP.slot, value, policy(wish), [file])
        for wish in (wishes[number] for number in order)
    }
    for _ in range(2):
        for wish, there in placed.items():
            assert torch.equal(CLIP.run(there.value), expected)
            row = there.row
            assert row.applied == wish
            assert (row.tiers.get("file", 0) > row.bytes / 2) == (wish == "layerwise")
            assert "for another placement" not in row.how
    streamed, whole = placed["layerwise"], placed["resident"]
    CLIP.run(streamed.value)
    assert "are in the model file now, for another placement of this model" in whole.row.how


def test_of_a_model_that_is_gone_nothing_is_said_to_be_applied() -> None:
    placed = place(CLIP, CLIP.make(), policy("resident"))
    placements = placed.placements
    del placed
    gc.collect()
    report = placements.report()
    assert report.rows[0].applied == ""
    assert "the model is gone" in report.text()
