"""What is decided is what happens: after random policies, live bytes are within every budget, or a limit says not."""

from __future__ import annotations

import gc
import os
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from . import comfy_models
from .comfyui import ComfyUI
from .placing import BIG, end_node, small_clip

pytestmark = pytest.mark.usefixtures("_inference_mode")

SLOTS = ("model", "clip", "vae")
NAMES = {"model": "diffusion_model", "clip": "text_encoder", "vae": "vae"}
PLACEMENTS = ("auto", "resident", "offload", "layerwise", "cpu")
Said = dict[str, tuple[str, ...]]
"""Component → the limits of its decision."""

EXAMPLES = int(os.environ.get("LAYERWISE_PROMISES", "20"))
GRAIN = 96 * 1024
"""What rounding of allocations may add to a component of a hundred weights."""


class Workflow:
    """An encoder, a diffusion model and a VAE, placed by one policy and used in turn."""

    def __init__(self, comfy: ComfyUI) -> None:
        self.comfy = comfy
        self.wired = {
            "model": comfy_models.sd3(comfy),
            "clip": small_clip(comfy),
            "vae": comfy_models.kl_vae(comfy),
        }
        self.sizes = {
            slot: sum(p.nbytes for p in self.patcher(value).model.parameters())
            for slot, value in self.wired.items()
        }
        self.objects = self.wired

    @staticmethod
    def patcher(value: Any) -> Any:
        return getattr(value, "patcher", value)

    def place(self, placements: dict[str, str], budgets: dict[str, float], total: float | None) -> Said:
        from offload_runtime.adapter import Placements, apply_policy
        from offload_runtime.policy import Policy, Source, SourceKind

        source = Source(SourceKind.OVERRIDE, "Set Placement, node 2")
        policy = Policy.from_widgets(
            Source(SourceKind.NODE, "Placement Policy, node 1"),
            placements={},
            vram_budget=f"{int(total * sum(self.sizes.values()))}B" if total is not None else "auto",
        )
        for slot, name in NAMES.items():
            own = f"{int(budgets[slot] * self.sizes[slot])}B" if slot in budgets else "auto"
            policy = policy.extended(
                Policy.for_component(source, name, placement=placements[slot], vram_budget=own)
            )
        self.objects, placed = apply_policy(policy, self.wired, {}, Placements())
        return {p.facts.name: p.decision.limits for p in placed.placed}

    def unload(self) -> None:
        self.comfy.mm.unload_all_models()
        self.objects = self.wired
        gc.collect()

    def use(self, slot: str) -> torch.Tensor:
        """Use one component as its node does."""
        if slot == "clip":
            result = comfy_models.encode(self.objects["clip"])[0]
        elif slot == "model":
            result = comfy_models.sample(self.comfy, self.objects["model"])
        else:
            latent = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(1))
            result = self.objects["vae"].decode(latent)
        end_node(self.comfy)
        return result.cpu()


def held(patcher: Any) -> int:
    """The bytes of a patcher's weights, and of slots for them, that are on the card."""
    there = {id(p): p.nbytes for p in patcher.model.parameters() if p.device.type != "cpu"}
    attached = patcher.attachments.get("layerwise_offload")
    streamer = getattr(attached, "streamer", None)
    return sum(there.values()) + (streamer.slot_bytes if streamer is not None else 0)


def test_live_bytes_are_within_every_budget(comfy: ComfyUI) -> None:
    """Under the legacy manager: these models are smaller than a page of dynamic VRAM."""
    comfy.sim.cap = BIG
    workflow = Workflow(comfy)

    @settings(max_examples=EXAMPLES, deadline=None, derandomize=True, phases=[Phase.generate])
    @given(
        placements=st.fixed_dictionaries({slot: st.sampled_from(PLACEMENTS) for slot in SLOTS}),
        budgets=st.dictionaries(st.sampled_from(SLOTS), st.floats(0.02, 1.2)),
        total=st.none() | st.floats(0.1, 1.2),
        order=st.permutations(SLOTS),
    )
    def holds(
        placements: dict[str, str], budgets: dict[str, float], total: float | None, order: list[str]
    ) -> None:
        said = workflow.place(placements, budgets, total)
        try:
            for slot in (*order, *order):
                workflow.use(slot)
                check(workflow, said, budgets, total)
        finally:
            workflow.unload()

    holds()


def check(workflow: Workflow, said: Said, budgets: dict[str, float], total: float | None) -> None:
    on_card = {slot: held(workflow.patcher(value)) for slot, value in workflow.objects.items()}
    for slot, share in budgets.items():
        assert on_card[slot] <= share * workflow.sizes[slot] + GRAIN or said[NAMES[slot]], slot
    if total is not None and not any(said.values()):
        assert sum(on_card.values()) <= total * sum(workflow.sizes.values()) + 3 * GRAIN, on_card
