"""From `cpu` to another placement, and back: ComfyUI takes all clones of a model to be for one device."""

from __future__ import annotations

import gc

import pytest
import torch

from .comfyui import ComfyUI
from .placing import BIG
from .test_inside_promises import SLOTS, Workflow

pytestmark = pytest.mark.usefixtures("_inference_mode")


@pytest.mark.parametrize("then", ["auto", "resident", "layerwise", "offload"])
@pytest.mark.parametrize("stays", [True, False], ids=["beside it", "after it"])
def test_what_was_on_the_cpu_computes_on_the_card_when_it_is_placed_there(
    comfy: ComfyUI, then: str, *, stays: bool
) -> None:
    comfy.sim.cap = BIG
    workflow = Workflow(comfy)
    expected = {slot: workflow.use(slot) for slot in SLOTS}
    comfy.mm.unload_all_models()
    for _ in range(2):
        workflow.place(dict.fromkeys(SLOTS, "cpu"), {}, None)
        for slot in SLOTS:
            with comfy.sim.measure() as m:
                on_cpu = workflow.use(slot)
            torch.testing.assert_close(on_cpu, expected[slot], atol=1e-3, rtol=1e-3)
            assert m.to_device < workflow.sizes[slot] / 2
        kept = workflow.objects if stays else None
        workflow.objects = workflow.wired
        gc.collect()
        workflow.place(dict.fromkeys(SLOTS, then), {}, None)
        for slot in SLOTS:
            assert torch.equal(workflow.use(slot), expected[slot])
        del kept
        gc.collect()
        for slot in SLOTS:
            assert torch.equal(workflow.use(slot), expected[slot])
