"""What the pack relies on in ComfyUI's dynamic VRAM: the native layer's order and bar, and what a prompt costs."""

from __future__ import annotations

from typing import Any

import torch

from offload_runtime.engine.check import Check, Geometry, randomize
from tests.sim.prompt_change import Encoder, Workflow

PAGE = 32 << 20
PROMPTS = 3

ENCODER = Geometry(4096, 64, 10240, 8, 512, table=32128, gated=True, bias=False)
"""Eight blocks and the token table of T5-XXL, 3.4 GB."""

DIFFUSION_GB = 3
ROOM = 5 * 10**9
"""Device memory that is left for both, so that they do not fit together."""


def native_checks(native: Any) -> list[Check]:
    """Check the ranges themselves; the card must have room for a few dozen pages, and not for hundreds.

    Args:
        native: the module `comfy_aimdo.model_vbar`.
    """

    def fault(alloc: Any) -> bool:
        signature = native.vbar_fault(alloc)
        if signature is not None:
            native.vbar_unpin(alloc)
        return signature is not None

    first, last = native.ModelVBAR(1 << 34, 0), native.ModelVBAR(1 << 34, 0)
    pages = [first.alloc(PAGE) for _ in range(200)]
    fault(pages[0])
    one = first.loaded_size()
    fits = sum(map(fault, pages))
    first.set_watermark(4 * PAGE)
    held, refused = first.loaded_size(), not fault(pages[4])
    first.prioritize()
    lifted = fault(pages[4])
    sum(map(fault, pages))
    before = first.loaded_size()
    last.deprioritize()
    sum(fault(last.alloc(PAGE)) for _ in range(16))
    lost = (before - first.loaded_size()) // PAGE
    last.prioritize()
    took = sum(fault(last.alloc(PAGE)) for _ in range(4))
    return [
        Check("a page is 32 MB", f"{one >> 20} MB", one == PAGE),
        Check("the card is full", f"{fits} pages of 200", 8 <= fits < 200),
        Check(
            "the bar drops pages and refuses more", f"{held // PAGE} of 4 stay", held == 4 * PAGE and refused
        ),
        Check("moving to the front lifts the bar", f"lifted: {lifted}", lifted),
        Check("the last in line takes no more than a page of others", f"{lost} lost", lost <= 1),
        Check("the first in line takes what it needs", f"{took} of 4 taken", took == 4),
    ]


def prompt_checks(comfy: Any) -> list[Check]:
    """Send prompts through an encoder and a diffusion model that do not fit together, without us and with us.

    Args:
        comfy: ComfyUI with dynamic VRAM on, as `tests.sim.prompt_change.Workflow` takes it.
    """
    took, outputs, lost = {}, [], {}
    with torch.inference_mode():
        for system in ("core", "ours"):
            with comfy.dynamic_off():
                workflow = Workflow(comfy, randomize(Encoder(ENCODER, comfy.ops.manual_cast)), DIFFUSION_GB)
            if system == "ours":
                workflow.place()
            for _ in range(PROMPTS):
                took[system] = workflow.prompt() - workflow.steady_step()
            lost[system] = _evicted_by_an_encode(workflow)
            outputs.append(workflow.encode())
            comfy.mm.unload_all_models()
            del workflow
    return [
        Check("an encode gives the same bits", f"equal: {torch.equal(*outputs)}", torch.equal(*outputs)),
        Check(
            "the encoder evicts next to nothing of the diffusion model",
            f"{lost['ours'] / 1e6:.0f} MB, without us {lost['core'] / 1e6:.0f} MB",
            lost["ours"] <= 0.2 * lost["core"],
        ),
        Check(
            "a new prompt costs less than without us",
            f"{took['ours']:.0f} ms more than a step, without us {took['core']:.0f} ms",
            took["ours"] <= 0.8 * took["core"],
        ),
    ]


def _evicted_by_an_encode(workflow: Workflow) -> int:
    """Return the bytes of the diffusion model that an encode takes, right after it was sampled with."""
    workflow.sample()
    before = workflow.diffusion.loaded_size()
    workflow.encode()
    return int(before - workflow.diffusion.loaded_size())
