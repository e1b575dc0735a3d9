"""Half of a model's layers on the simulated card, the rest streamed: as the pack does it inside real ComfyUI.

The budget is what `engine_cases` gives the engine alone: every second layer, and the slots. What is in no layer is
paid for beside it, except for the token table, which is looked up on the host and left out here.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch

from tests.sim import Accelerator
from tests.sim.comfyui import ComfyUI
from tests.sim.crosscheck.standins import build
from tests.sim.crosscheck.systems import Row, measure

from .engine_cases import EVERYTHING, looped


def half_resident(name: str, profile: str, passes: int | None = None) -> Row:
    """Run a model through ComfyUI's legacy memory manager with our placement on it.

    Args:
        passes: how often a use runs the model, where it is not as often as the stand-in does by itself.
    """
    with Accelerator(profile, shapes=True, cap=EVERYTHING) as sim:
        comfy = ComfyUI(sim)
        try:
            return _run(comfy, looped(build(name, comfy.ops.manual_cast), passes))
        finally:
            comfy.close()


def _run(comfy: ComfyUI, model: torch.nn.Module) -> Row:
    from offload_runtime.adapter.backends import StreamedToDevice
    from offload_runtime.adapter.structure import find_stacks
    from offload_runtime.engine import Ledger, parameter_bytes, slot_bytes_for
    from offload_runtime.policy import HostTier

    given = model.sample(comfy.sim.device)
    if getattr(model, "embed", None) is not None:
        geometry, model.embed = model.geometry, None
        given = torch.zeros(*given.shape, geometry.hidden, dtype=geometry.dtype, device=comfy.sim.device)
    patcher = comfy.model_patcher.ModelPatcher(model, comfy.sim.device, torch.device("cpu"))
    patcher.is_clip = True
    stacks = find_stacks(model)
    sizes = [layer.bytes for stack in stacks for layer in stack.layers]
    budget = slot_bytes_for(stacks) + sum(sizes[1::2]) + parameter_bytes(model) - sum(sizes)
    handle = SimpleNamespace(patcher=patcher, socket="clip", component="text_encoder")
    placed = StreamedToDevice(handle, Ledger(), budget, HostTier.PINNED)
    placed.attach(patcher, stacks)

    def use() -> None:
        comfy.mm.load_models_gpu([patcher])
        model(given)

    with torch.inference_mode():
        use()  # the first use teaches the order
    row = measure(comfy.sim, use)
    comfy.mm.unload_all_models()
    return row
