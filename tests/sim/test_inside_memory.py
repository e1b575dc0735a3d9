"""What ComfyUI's memory manager does to a layerwise component, and what is then on the card."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from . import comfy_models
from .comfyui import ComfyUI
from .placing import BIG, MIB, end_node, loaded, ours_on, place, small_clip, vram_state

pytestmark = pytest.mark.usefixtures("_inference_mode")

LATENT = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(1))


def encode(clip: Any) -> torch.Tensor:
    return comfy_models.encode(clip, "fox")[0]


def test_other_nodes_free_memory_partly_and_wholly(comfy: ComfyUI) -> None:
    comfy.sim.cap = BIG
    placed = place("clip", small_clip(comfy), vram_budget="12MB")
    expected = encode(placed.value)
    end_node(comfy)
    live, slot = comfy.sim.memory.live, placed.row.tiers["slot"]
    free = comfy.mm.get_free_memory(comfy.sim.device)
    for more in (MIB, slot + MIB, 5 * MIB, 1 << 50):
        comfy.mm.free_memory(free + more, comfy.sim.device)
        assert comfy.sim.memory.live <= max(0, live - more) or more == 1 << 50
        assert loaded(comfy) == pytest.approx(placed.patcher.loaded_size(), abs=1)
        assert 0 <= placed.patcher.loaded_size() <= placed.patcher.model_size()
        assert torch.equal(encode(placed.value), expected)
        end_node(comfy)
        assert comfy.sim.memory.live == pytest.approx(live, abs=MIB)
        free = comfy.mm.get_free_memory(comfy.sim.device)


def test_free_model_and_node_cache(comfy: ComfyUI) -> None:
    """The button unloads everything and drops the cached outputs; the report may be kept by the frontend."""
    comfy.sim.cap = BIG
    live, pinned = comfy.sim.memory.live, comfy.mm.TOTAL_PINNED_MEMORY
    wired = small_clip(comfy)
    expected = encode(wired)
    placed = place("clip", wired, vram_budget="8MB")
    assert torch.equal(encode(placed.value), expected)
    comfy.mm.unload_all_models()
    end_node(comfy)
    assert comfy.sim.memory.live == live, comfy.sim.memory.report()
    assert ours_on(wired.patcher.model) == set()
    assert "not loaded now" in placed.row.how
    assert torch.equal(encode(placed.value), expected), "the cached output of the loader runs again"
    comfy.mm.unload_all_models()
    end_node(comfy)
    kept = placed.placed
    del placed, wired
    gc.collect()
    comfy.mm.cleanup_models()
    assert comfy.sim.memory.live == live, comfy.sim.memory.report()
    assert pinned == comfy.mm.TOTAL_PINNED_MEMORY
    assert kept.row().component == "text_encoder"


def test_smart_memory_switched_off(comfy: ComfyUI, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comfy.mm, "DISABLE_SMART_MEMORY", True)
    comfy.sim.cap = BIG
    clip, vae = place("clip", small_clip(comfy)), place("vae", comfy_models.kl_vae(comfy))
    live = comfy.sim.memory.live
    expected, picture = encode(clip.value), vae.value.decode(LATENT)
    for _ in range(2):
        assert torch.equal(encode(clip.value), expected)
        assert vae.row.tiers["slot"] == 0, "every load unloads all others"
        assert torch.equal(vae.value.decode(LATENT), picture)
        assert clip.row.tiers["slot"] == 0
    comfy.mm.unload_all_models()
    end_node(comfy)
    assert comfy.sim.memory.live == live


@pytest.mark.parametrize("budget", ["1MB", "2MB", "4MB", "7MB", "16MB", "64MB"])
def test_device_bytes_never_exceed_the_budget(comfy: ComfyUI, budget: str) -> None:
    comfy.sim.cap = BIG
    wired = small_clip(comfy)
    expected = encode(wired)
    comfy.mm.unload_all_models()
    end_node(comfy)
    live, limit = comfy.sim.memory.live, int(budget[:-2]) * MIB
    placed = place("clip", wired, vram_budget=budget)
    comfy.sim.memory.reset_peak()
    outside = sum(p.nbytes for n, p in placed.patcher.model.named_parameters() if ".layers." not in n)
    biggest = max(p.nbytes for n, p in placed.patcher.model.named_parameters() if ".layers." not in n)
    for _ in range(2):
        assert torch.equal(encode(placed.value), expected)
        end_node(comfy)
        assert comfy.sim.memory.live - live <= limit
        assert comfy.sim.memory.live - live == pytest.approx(placed.patcher.loaded_size(), abs=0.1 * MIB)
    assert outside > 0
    # Weights outside the layers that do not fit are cast by core, one at a time, for one operation.
    assert comfy.sim.memory.weights_peak - live <= limit + 2 * biggest
    if limit > placed.row.bytes + 3 * MIB:
        assert placed.row.tiers["slot"] == 0, "nothing is streamed, so nothing needs a slot"
        with comfy.sim.measure() as m:
            encode(placed.value)
        assert m.to_device < MIB


def test_an_image_encode_beside_a_full_card_asks_for_no_room(comfy: ComfyUI, tmp_path: Path) -> None:
    """Its slots fit in what ComfyUI keeps free for activations, so nobody is evicted for them."""
    config = tmp_path / "vision.json"
    config.write_text(json.dumps(comfy_models.VISION_CONFIG))
    placed = place("clip_vision", comfy_models.vision(comfy, str(config)))
    assert placed.patcher.model_size() == 0
    placed.value.encode_image(torch.rand(1, 224, 224, 3))
    assert placed.row.tiers["slot"] > 0


def test_budgets_grow_and_shrink_between_runs(comfy: ComfyUI) -> None:
    comfy.sim.cap = BIG
    wired = small_clip(comfy)
    expected = encode(wired)
    whole = wired.patcher.model_size()
    comfy.mm.unload_all_models()
    end_node(comfy)
    live, pinned = comfy.sim.memory.live, comfy.sim.pinned
    moved = {}
    # The layers take 5 MB and the token table, which is looked up on the host, 13 MB: it comes last.
    for budget in ("6MB", "16MB", "9MB", "3MB", "64MB", "6MB", "9MB", "16MB"):
        placed = place("clip", wired, vram_budget=budget)
        for _ in range(2):
            with comfy.sim.measure() as m:
                assert torch.equal(encode(placed.value), expected)
        end_node(comfy)
        assert comfy.sim.memory.live - live <= int(budget[:-2]) * MIB
        assert comfy.sim.memory.live - live == pytest.approx(placed.patcher.loaded_size(), abs=0.1 * MIB)
        assert comfy.sim.pinned - pinned <= 1.1 * whole, "packed masters of earlier budgets are let go"
        assert moved.setdefault(budget, m.to_device) == pytest.approx(m.to_device, rel=0.01)
    assert moved["64MB"] <= moved["16MB"] == moved["9MB"] < MIB < moved["6MB"] < moved["3MB"]


def test_the_room_that_comfyui_sees_grows_and_shrinks(comfy: ComfyUI) -> None:
    comfy.sim.cap = BIG
    wired = small_clip(comfy)
    expected = encode(wired)
    comfy.mm.unload_all_models()
    end_node(comfy)
    placed = place("clip", wired, vram_budget="64MB")
    had = []
    for room in (40, 4, 1, 40, 3, 5):
        comfy.mm.unload_all_models()
        end_node(comfy)
        comfy.cap_for(room * MIB)
        for _ in range(2):
            assert torch.equal(encode(placed.value), expected)
            end_node(comfy)
            assert loaded(comfy) == pytest.approx(comfy.sim.memory.live, abs=0.1 * MIB)
        had.append(placed.patcher.loaded_size() - placed.row.tiers["slot"])
        comfy.sim.cap = BIG
    assert had[0] == had[3] > 17 * MIB * 0.95, "all of it"
    assert had[2] <= had[4] <= had[1] <= had[5] < 6 * MIB


@pytest.mark.parametrize("state", ["HIGH_VRAM", "LOW_VRAM", "NO_VRAM"])
def test_memory_modes_bound_what_the_budget_allows(comfy: ComfyUI, state: str) -> None:
    """`--highvram`, `--lowvram` and `--novram` come before the node: no weight stays where they forbid it."""
    comfy.sim.cap = BIG
    latent_vae = comfy_models.kl_vae(comfy)
    expected = latent_vae.decode(LATENT)
    comfy.mm.unload_all_models()
    with vram_state(comfy, state):
        vae = place("vae", comfy_models.kl_vae(comfy), vram_budget="8MB")
        for _ in range(2):
            assert torch.equal(vae.value.decode(LATENT), expected)
        resident = vae.patcher.loaded_size() - vae.row.tiers["slot"]
        assert vae.row.applied == ("layerwise" if state == "NO_VRAM" else "resident"), "8 MB hold all of it"
        assert (resident < MIB) == (state == "NO_VRAM")
        comfy.mm.unload_all_models()


def test_gpu_only_keeps_masters_on_the_card_and_streams_nothing(
    comfy: ComfyUI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comfy.args, "gpu_only", True)
    comfy.sim.cap = BIG
    with vram_state(comfy, "HIGH_VRAM"):
        wired = small_clip(comfy, comfy.sim.device)
        expected = encode(wired)
        placed = place("clip", wired)
        assert torch.equal(encode(placed.value), expected)
        assert placed.row.tiers.get("slot", 0) == 0
        assert placed.row.moved_bytes == 0
        encode(placed.value)
        assert placed.row.applied == "resident", "nothing is streamed, and the report says so"
        assert torch.equal(encode(wired), expected)


def test_a_vae_that_runs_out_of_memory_is_decoded_in_tiles(
    comfy: ComfyUI, monkeypatch: pytest.MonkeyPatch
) -> None:
    comfy.sim.cap = BIG
    latent = torch.randn(1, 4, 32, 32, generator=torch.Generator().manual_seed(1))
    wired = comfy_models.kl_vae(comfy)
    small = wired.decode(LATENT)
    expected = wired.decode_tiled_(latent, 16, 16, 4).movedim(1, -1)
    comfy.mm.unload_all_models()
    end_node(comfy)
    placed, tiles = place("vae", wired), []
    placed.value.decode(LATENT)
    assert placed.row.tiers["slot"] > 0
    live = comfy.sim.memory.live
    comfy.sim.memory.reset_peak()
    placed.value.decode(latent)
    original = placed.value.decode_tiled_
    placed.value.decode_tiled_ = lambda x: tiles.append(1) or original(x, 16, 16, 4)
    comfy.sim.cap = live + (comfy.sim.memory.peak - live) * 6 // 10  # a tile fits, the whole picture does not
    monkeypatch.setattr(comfy.mm, "minimum_inference_memory", lambda: 0)
    for _ in range(2):
        picture = placed.value.decode(latent)
        assert tiles
        torch.testing.assert_close(picture, expected, atol=1e-5, rtol=1e-5)
        tiles.clear()
        assert torch.equal(placed.value.decode(LATENT), small)
        assert not tiles
    assert placed.row.applied == "layerwise"


def test_slots_that_do_not_fit_at_load_are_taken_when_a_layer_runs(comfy: ComfyUI) -> None:
    """Another program took the memory between ComfyUI's planning and our allocation."""
    comfy.sim.cap = BIG
    wired = small_clip(comfy)
    expected = encode(wired)
    comfy.mm.unload_all_models()
    placed = place("clip", wired)
    encode(placed.value)
    comfy.mm.unload_all_models()
    end_node(comfy)
    cap = comfy.sim.cap
    comfy.sim.cap = comfy.sim.memory.live + MIB
    comfy.mm.load_models_gpu([placed.patcher])
    assert placed.row.tiers["slot"] == 0
    comfy.sim.cap = cap
    assert torch.equal(encode(placed.value), expected)


@pytest.mark.parametrize("budget", [None, "64MB"])
def test_sampling_keeps_residents_and_slots_for_the_whole_run(comfy: ComfyUI, budget: str | None) -> None:
    comfy.sim.cap = BIG
    wired = comfy_models.sd3(comfy)
    expected = comfy_models.sample(comfy, wired, steps=4)
    comfy.mm.unload_all_models()
    placed = place("model", wired, vram_budget=budget)
    with comfy.sim.measure() as m:
        assert torch.equal(comfy_models.sample(comfy, placed.value, steps=4), expected)
        first = m.to_device
    seen = set()
    block = placed.patcher.model.diffusion_model.joint_blocks[1]
    block.register_forward_pre_hook(lambda *a: seen.add(placed.patcher.loaded_size()))
    with comfy.sim.measure() as m:
        assert torch.equal(comfy_models.sample(comfy, placed.value, steps=4), expected)
        again = m.to_device
    assert len(seen) == 1, "what is loaded does not change from step to step"
    assert first < 3 * placed.row.bytes, "both blocks fit into the slots and stay there"
    assert again < (1.1 * first if budget is None else 2 * MIB), "residents stay from run to run"
