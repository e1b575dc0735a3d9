"""The peers' ways of running a model that does not stay on the card, as the baseline names them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..accelerator import Accelerator
from ..comfyui import ComfyUI, tree
from ..profile import Profile
from .ring import Ring
from .standins import build

MB = 1e6
Run = Callable[[], Any]


@dataclass(frozen=True)
class Row:
    """One cell: milliseconds of the second run, its peak of weights on the device and what it copies there, in MB.

    None is what was not published.
    """

    ms: float
    weights: float | None = None
    copied: float | None = None


def measure(sim: Accelerator, run: Run, runs_before: int = 1) -> Row:
    """Time the second run, or another one."""
    with torch.inference_mode():
        for _ in range(runs_before):
            run()
        torch.accelerator.synchronize()
        sim.memory.reset_peak()
        with sim.measure() as m:
            run()
        return Row(m.ms, sim.memory.weights_peak / MB, m.to_device / MB)


def simulate(system: str, model: str, profile: str | Profile = "rtx4090") -> Row:
    """Run one system on one model."""
    with Accelerator(profile, shapes=True, cap=1 << 40) as sim:
        return globals()[system](sim, model)


def core_gathers() -> bool:
    """Whether the ComfyUI under test copies through gathered cast buffers."""
    return "def get_cast_buffer(" in (tree() / "comfy" / "model_management.py").read_text(encoding="utf-8")


# Plain torch ------------------------------------------------------------------------------------------


def resident(sim: Accelerator, name: str) -> Row:
    model = build(name).to(sim.device)
    given = model.sample(sim.device)
    return measure(sim, lambda: model(given))


def whole_to(sim: Accelerator, name: str) -> Row:
    model = build(name)
    given = model.sample(sim.device)

    def run() -> None:
        model.to(sim.device)
        model(given)
        model.to("cpu")

    return measure(sim, run)


def whole_pinned(sim: Accelerator, name: str) -> Row:
    model = build(name)
    for parameter in model.parameters():
        parameter.data = parameter.data.pin_memory()
    masters = {parameter: parameter.data for parameter in model.parameters()}
    given = model.sample(sim.device)

    def run() -> None:
        for parameter, master in masters.items():
            parameter.data = master.to(sim.device, non_blocking=True)
        model(given)
        for parameter, master in masters.items():
            parameter.data = master

    return measure(sim, run)


def ref_ring(sim: Accelerator, name: str, half_resident: bool = False) -> Row:
    model = build(name)
    Ring(model, sim.device, half_resident)
    given = model.sample(sim.device)
    return measure(sim, lambda: model(given))


def ref_ring_half(sim: Accelerator, name: str) -> Row:
    return ref_ring(sim, name, half_resident=True)


# ComfyUI ----------------------------------------------------------------------------------------------


def _core(sim: Accelerator, name: str, *, streams: int, pinned: bool) -> Row:
    """Core's legacy path with no room for any weight."""
    comfy = ComfyUI(sim, streams=streams, pinned=pinned)
    try:
        model = build(name, comfy.ops.manual_cast)
        patcher = comfy.model_patcher.ModelPatcher(
            model, load_device=sim.device, offload_device=torch.device("cpu")
        )
        with torch.inference_mode():
            patcher.patch_model(sim.device, lowvram_model_memory=0.1)
        given = model.sample(sim.device)
        row = measure(sim, lambda: model(given))
        sim.synchronize()
        patcher.unpin_all_weights()
        return row
    finally:
        comfy.close()


def comfy_async(sim: Accelerator, name: str) -> Row:
    return _core(sim, name, streams=2, pinned=True)


def comfy_async_pageable(sim: Accelerator, name: str) -> Row:
    return _core(sim, name, streams=2, pinned=False)


def comfy_sync(sim: Accelerator, name: str) -> Row:
    return _core(sim, name, streams=0, pinned=False)


def _dynamic(sim: Accelerator, name: str, *, room: bool) -> Row:
    comfy = ComfyUI(sim)
    try:
        model = build(name, comfy.ops.manual_cast)
        comfy.enable_dynamic()
        patcher = comfy.model_patcher.ModelPatcherDynamic(model, sim.device, torch.device("cpu"))
        given = model.sample(sim.device)
        with torch.inference_mode():
            comfy.mm.load_models_gpu([patcher])
        if not room:
            patcher._vbar_get(create=True).set_watermark(0)
        return measure(sim, lambda: model(given))
    finally:
        comfy.close()


def comfy_dynamic(sim: Accelerator, name: str) -> Row:
    return _dynamic(sim, name, room=True)


def comfy_dynamic_noroom(sim: Accelerator, name: str) -> Row:
    return _dynamic(sim, name, room=False)


# Diffusers --------------------------------------------------------------------------------------------


def _diffusers(sim: Accelerator, name: str, **options: Any) -> Row:
    from diffusers.hooks import apply_group_offloading

    model = build(name)
    if options["offload_type"] == "block_level":
        options["num_blocks_per_group"] = 1
    apply_group_offloading(model, onload_device=sim.device, offload_device=torch.device("cpu"), **options)
    given = model.sample(sim.device)
    return measure(sim, lambda: model(given))


def diffusers_block(sim: Accelerator, name: str) -> Row:
    return _diffusers(sim, name, offload_type="block_level")


def diffusers_block_stream(sim: Accelerator, name: str) -> Row:
    return _diffusers(sim, name, offload_type="block_level", use_stream=True)


def diffusers_block_stream_rec(sim: Accelerator, name: str) -> Row:
    return _diffusers(sim, name, offload_type="block_level", use_stream=True, record_stream=True)


def diffusers_block_stream_lowcpu(sim: Accelerator, name: str) -> Row:
    return _diffusers(sim, name, offload_type="block_level", use_stream=True, low_cpu_mem_usage=True)


def diffusers_leaf(sim: Accelerator, name: str) -> Row:
    return _diffusers(sim, name, offload_type="leaf_level")


def diffusers_leaf_stream(sim: Accelerator, name: str) -> Row:
    return _diffusers(sim, name, offload_type="leaf_level", use_stream=True)


def diffusers_leaf_stream_rec(sim: Accelerator, name: str) -> Row:
    return _diffusers(sim, name, offload_type="leaf_level", use_stream=True, record_stream=True)
