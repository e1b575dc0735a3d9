"""ComfyUI 0.33's dynamic VRAM over the simulated ``comfy_aimdo``, and that stand-in itself."""

from __future__ import annotations

import gc
import importlib.metadata
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from . import Accelerator, SimulationFault, comfy_models
from .aimdo import buffers, vbar
from .comfy_models import CPU
from .comfyui import ComfyUI

MIB = 1 << 20
BIG = 8 << 30


# The stand-in -----------------------------------------------------------------------------------------


@pytest.fixture
def card(sim: Accelerator) -> Iterator[Accelerator]:
    """Room for four pages of a range: a fault wants one page more than it takes."""
    sim.cap = 5 * vbar.PAGE
    yield sim
    vbar.reset()


def page_sized(owner: vbar.ModelVBAR, count: int) -> list[vbar.Allocation]:
    return [owner.alloc(vbar.PAGE) for _ in range(count)]


def fault(alloc: vbar.Allocation) -> Any:
    """Fault and unpin, as a layer does."""
    signature = vbar.vbar_fault(alloc)
    if signature is not None:
        vbar.vbar_unpin(alloc)
    return signature


def test_a_range_costs_nothing_until_it_is_faulted_in(card: Accelerator) -> None:
    model = vbar.ModelVBAR(1 << 40 >> 10, 0)
    alloc = model.alloc(100)
    assert card.memory.live == model.loaded_size() == 0
    with pytest.raises(SimulationFault, match="not resident"):
        buffers.aimdo_to_tensor(alloc, card.device)
    signature = fault(alloc)
    assert card.memory.live == model.loaded_size() == vbar.PAGE
    tensor = buffers.aimdo_to_tensor(alloc, card.device)
    assert (tensor.device, tensor.shape, tensor.dtype) == (card.device, (100,), torch.uint8)
    tensor.fill_(7)
    assert vbar.vbar_signature_compare(fault(alloc), signature)
    assert buffers.aimdo_to_tensor(alloc, card.device).sum().item() == 700


def test_small_weights_share_a_page(card: Accelerator) -> None:
    model = vbar.ModelVBAR(1 << 30, 0)
    first, second = model.alloc(1000), model.alloc(1000)
    fault(first)
    fault(second)
    assert model.loaded_size() == vbar.PAGE
    assert second[1] - first[1] == 1024


def test_a_fault_without_room_fails_and_sets_the_watermark(card: Accelerator) -> None:
    model = vbar.ModelVBAR(1 << 30, 0)
    allocs = page_sized(model, 6)
    assert [fault(a) is not None for a in allocs] == [True] * 4 + [False] * 2
    assert model.get_watermark() == 4
    card.cap = 1 << 30
    assert fault(allocs[4]) is None, "the watermark stays, whatever is free"
    model.prioritize()
    assert fault(allocs[4]) is not None


def test_lower_addresses_win_inside_a_model(card: Accelerator) -> None:
    model = vbar.ModelVBAR(1 << 30, 0)
    allocs = page_sized(model, 6)
    for alloc in allocs[1:4]:
        assert fault(alloc) is not None
    assert fault(allocs[4]) is None, "there would be no room for page 0"
    assert fault(allocs[0]) is not None
    assert [flags & 1 for flags in model.get_residency()] == [1, 1, 1, 1, 0]
    assert model.get_watermark() == 4


def test_newer_models_win_and_evicted_weights_have_new_signatures(card: Accelerator) -> None:
    old, new = vbar.ModelVBAR(1 << 30, 0), vbar.ModelVBAR(1 << 30, 0)
    olds, news = page_sized(old, 3), page_sized(new, 3)
    signatures = [fault(a) for a in olds]
    assert all(fault(a) is not None for a in news)
    assert old.loaded_size() == vbar.PAGE
    assert fault(olds[2]) is None
    old.prioritize()
    again = [fault(a) for a in olds]
    assert vbar.vbar_signature_compare(again[0], signatures[0])
    assert not vbar.vbar_signature_compare(again[1], signatures[1])
    old.deprioritize()
    new.prioritize()
    assert all(fault(a) is not None for a in news)
    assert fault(olds[2]) is None


def test_pinned_pages_stay(card: Accelerator) -> None:
    old, new = vbar.ModelVBAR(1 << 30, 0), vbar.ModelVBAR(1 << 30, 0)
    olds = page_sized(old, 4)
    for alloc in olds:
        assert vbar.vbar_fault(alloc) is not None
    assert vbar.vbar_fault(new.alloc(10)) is None
    assert old.get_residency()[0] == 3
    assert old.free_memory(1e30) == 0
    vbar.vbar_unpin(olds[3])
    new.prioritize()
    assert vbar.vbar_fault(new.alloc(10)) is not None
    assert old.get_residency()[3] == 0


def test_a_watermark_is_a_budget_until_the_range_is_prioritised(card: Accelerator) -> None:
    model = vbar.ModelVBAR(1 << 30, 0)
    allocs = page_sized(model, 3)
    for alloc in allocs:
        fault(alloc)
    model.set_watermark(vbar.PAGE + 1)
    assert model.loaded_size() == 2 * vbar.PAGE, "rounded up to pages"
    assert fault(allocs[2]) is None
    vbar.vbars_reset_watermark_limits()
    assert fault(allocs[2]) is None
    model.deprioritize()
    assert fault(allocs[2]) is None
    model.prioritize()
    assert fault(allocs[2]) is not None


def test_the_limit_of_a_watermark_protects_pages_and_caps_none(card: Accelerator) -> None:
    old, new = vbar.ModelVBAR(1 << 30, 0), vbar.ModelVBAR(1 << 30, 0)
    for alloc in page_sized(old, 3):
        fault(alloc)
    old.set_watermark_limit(vbar.PAGE)
    assert old.loaded_size() == 3 * vbar.PAGE
    news = page_sized(new, 4)
    assert [fault(alloc) is not None for alloc in news] == [True] * 3 + [False]
    assert old.loaded_size() == vbar.PAGE
    assert old.free_memory(1e30) == 0
    vbar.vbars_reset_watermark_limits()
    assert old.free_memory(1e30) == vbar.PAGE


def test_the_last_range_in_line_takes_what_is_free_and_a_little_of_others(card: Accelerator) -> None:
    first, last = vbar.ModelVBAR(1 << 30, 0), vbar.ModelVBAR(1 << 30, 0)
    for alloc in page_sized(first, 4):
        fault(alloc)
    last.deprioritize()
    assert [fault(alloc) is not None for alloc in page_sized(last, 3)] == [False] * 3
    assert first.loaded_size() == 4 * vbar.PAGE
    card.cap = 4 * vbar.PAGE
    last.prioritize()
    last.deprioritize()
    assert fault(last.alloc(vbar.PAGE)) is None
    assert first.loaded_size() == 3 * vbar.PAGE, (
        "a fault that fails for want of room has made room all the same"
    )


def test_the_stand_in_does_what_the_native_layer_does() -> None:
    installed = any(importlib.metadata.distributions(name="comfy-aimdo"))
    if sys.platform != "linux" or not installed or shutil.which("cc") is None:
        pytest.skip("comfy-aimdo and a C compiler are needed, on Linux.")
    command = [sys.executable, "-W", "ignore", "-m", "tests.sim.aimdo.native", "40"]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_torch_takes_pages_rather_than_run_out(card: Accelerator) -> None:
    model = vbar.ModelVBAR(1 << 30, 0)
    for alloc in page_sized(model, 4):
        fault(alloc)
    activation = torch.empty(vbar.PAGE + 1, dtype=torch.uint8, device=card.device)
    assert model.loaded_size() == vbar.vbars_analyze() == 3 * vbar.PAGE
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(4 * vbar.PAGE, dtype=torch.uint8, device=card.device)
    del activation


def test_a_dead_model_gives_everything_back(card: Accelerator) -> None:
    model = vbar.ModelVBAR(1 << 30, 0)
    allocs = page_sized(model, 3)
    for alloc in allocs:
        fault(alloc)
    buffer = buffers.VRAMBuffer(1 << 30, 0)
    buffer.get(10)
    assert buffer.size() == 16 * MIB
    del model, allocs, alloc, buffer
    gc.collect()
    assert card.memory.live == 0


def test_a_vram_buffer_grows_in_place(card: Accelerator) -> None:
    buffer = buffers.VRAMBuffer(1 << 30, 0)
    first = buffers.aimdo_to_tensor(buffer.get(4), card.device).fill_(3)
    buffers.aimdo_to_tensor(buffer.get(20 * MIB, 4), card.device)
    assert buffer.size() == 32 * MIB
    assert buffers.aimdo_to_tensor(buffer.get(4), card.device).tolist() == first.tolist() == [3] * 4
    with pytest.raises(RuntimeError, match="grow failed"):
        buffer.get(200 * MIB)


def test_a_host_buffer_grows_and_is_pinned_where_it_is_told(card: Accelerator) -> None:
    host = buffers.HostBuffer(0, 0, 1 << 40 >> 8)
    host.extend(4096, register=False)
    address = host.get_raw_address()
    view = buffers.hostbuf_to_tensor(host)
    view.untyped_storage()._comfy_hostbuf = host
    assert not view.is_pinned()
    host.extend(4096)
    assert host.get_raw_address() == address
    assert buffers.hostbuf_to_tensor(host)[4096:].is_pinned()
    assert card.pinned == 4096
    host.truncate(4096)
    assert (host.size, card.pinned) == (4096, 0)
    with pytest.raises(RuntimeError, match="extend failed"):
        host.extend(1 << 40)


# ComfyUI on it ----------------------------------------------------------------------------------------


@pytest.fixture
def dynamic(sim: Accelerator) -> Iterator[ComfyUI]:
    sim.cap = BIG
    comfy = ComfyUI(sim)
    try:
        if not comfy.has_dynamic:
            pytest.skip("This ComfyUI has no dynamic VRAM (it came after 0.3.75).")
        comfy.enable_dynamic()
        with torch.inference_mode():
            yield comfy
    finally:
        comfy.close()


def with_lora(clip: Any) -> Any:
    generator = torch.Generator().manual_seed(3)
    keys = [key for key in clip.patcher.model_state_dict() if key.endswith("mlp.fc1.weight")]
    clone = clip.clone()
    shape = clip.patcher.model_state_dict()[keys[0]].shape
    delta = (torch.randn(shape, generator=generator) * 0.01,)
    assert set(clone.add_patches(dict.fromkeys(keys, delta), 1.0)) == set(keys)
    return clone


@pytest.mark.parametrize("room", [BIG, 96 * MIB], ids=["fits", "partly"])
def test_a_text_encoder_encodes_the_same_numbers(dynamic: ComfyUI, room: int) -> None:
    expected = comfy_models.encode(comfy_models.clip_l(dynamic, CPU))[0]
    clip = comfy_models.clip_l(dynamic)
    assert clip.patcher.is_dynamic()
    dynamic.sim.cap = room
    moved = []
    for _ in range(3):
        with dynamic.sim.measure() as m:
            got = comfy_models.encode(clip)[0]
        dynamic.end_node()
        assert torch.equal(got, expected)
        assert m.kernels > 80
        moved.append(m.to_device)
    assert (moved[2] < MIB) == (room == BIG)
    assert moved[2] < moved[0]
    assert 0 < clip.patcher.loaded_size() <= room


@pytest.mark.parametrize("room", [BIG, 96 * MIB], ids=["fits", "partly"])
def test_a_lora_encodes_the_same_numbers_dynamic_and_legacy(dynamic: ComfyUI, room: int) -> None:
    plain = comfy_models.encode(comfy_models.clip_l(dynamic))[0]
    clip = with_lora(comfy_models.clip_l(dynamic))
    legacy = with_lora(comfy_models.clip_l(dynamic, disable_dynamic=True))
    assert clip.patcher.is_dynamic()
    assert not legacy.patcher.is_dynamic()
    expected = comfy_models.encode(legacy)[0]
    dynamic.mm.unload_all_models()
    dynamic.sim.cap = room
    for _ in range(2):
        got = comfy_models.encode(clip)[0]
        dynamic.end_node()
        # The dynamic path writes the patched weight back rounded stochastically, the legacy one when it
        # loads.
        torch.testing.assert_close(got, expected, atol=2e-2, rtol=2e-2)
    assert not torch.allclose(got, plain, atol=2e-2)


def test_a_vae_decodes_the_same_numbers(dynamic: ComfyUI) -> None:
    latent = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(1))
    expected = comfy_models.kl_vae(dynamic, CPU).decode(latent)
    ours = comfy_models.kl_vae(dynamic)
    assert ours.patcher.is_dynamic()
    assert torch.equal(ours.decode(latent), expected)


def test_a_second_model_takes_the_pages_of_the_first(dynamic: ComfyUI) -> None:
    first, second = comfy_models.clip_l(dynamic), comfy_models.t5_base(dynamic)
    dynamic.sim.cap = 160 * MIB
    comfy_models.encode(first)
    dynamic.end_node()
    before = first.patcher.loaded_size()
    comfy_models.encode(second)
    dynamic.end_node()
    assert first.patcher.loaded_size() < before
    assert second.patcher.loaded_size() > 0
