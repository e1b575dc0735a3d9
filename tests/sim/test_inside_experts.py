"""Two diffusion models in turn, as the experts of Wan 2.2, and a large encoder: what a new prompt costs on 24 GiB."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from .comfyui import ComfyUI
from .crosscheck.standins import GEOMETRIES, StandIn
from .prompt_change import GB, Diffusion, Workflow

pytestmark = [
    pytest.mark.usefixtures("_inference_mode"),
    pytest.mark.card(profile="rtx4090", shapes=True, cap=24 * 2**30),
]

UMT5 = {
    # As many bytes as of float16, and as of float8: what computes with it makes no difference here.
    "fp16": replace(GEOMETRIES["t5xxl"], table=256384),
    "fp8": replace(GEOMETRIES["t5xxl"], table=160000, layers=12),
}
EXPERT = 14


class Experts(Workflow):
    """An encoder, and two diffusion models of which each runs a step of every prompt.

    Args:
        comfy: ComfyUI; switch dynamic VRAM on before, if it is wanted.
        weights: the type of the encoder's weights.
    """

    def __init__(self, comfy: ComfyUI, weights: str) -> None:
        with comfy.dynamic_off():
            with torch.device("meta"):
                encoder = StandIn(UMT5[weights], comfy.ops.manual_cast).to(torch.bfloat16)
            low = Diffusion(comfy.ops.manual_cast, EXPERT)
        super().__init__(comfy, encoder.to_empty(device="cpu").eval().requires_grad_(False), EXPERT, 4 * GB)
        self.low = self.patcher(low)

    def apply(self, policy: Any, **beside: Any) -> Any:
        """Put a policy on all: the second expert needs a Loader of its own, and the first one knows of its file."""
        from offload_runtime.adapter import apply_policy
        from offload_runtime.adapter.whole_prompt import Around, Bystander
        from offload_runtime.policy import BystanderFacts

        facts = BystanderFacts("low.safetensors", EXPERT * GB, "dit", in_turn=True)
        around = Around((Bystander(facts, "MODEL"),))
        placed, placements = apply_policy(
            policy, {"model": self.low}, {}, super().apply(policy, around=around)
        )
        self.low = placed["model"]
        return placements

    def new_prompt(self) -> float:
        """Return the milliseconds of a new prompt with one step of each expert."""
        with self.comfy.sim.measure() as m:
            self.encode()
            self.sample()
            self.diffusion, self.low = self.low, self.diffusion
            self.sample()
            self.diffusion, self.low = self.low, self.diffusion
        return float(m.ms)


def took(comfy: ComfyUI, weights: str, wishes: dict[str, str] | None) -> float:
    """Milliseconds of the fifth prompt, without the pack or with some wishes."""
    workflow = Experts(comfy, weights)
    if wishes is not None:
        workflow.place(placements=wishes)
    ms = [workflow.new_prompt() for _ in range(5)][-1]
    comfy.mm.unload_all_models()
    return ms


@pytest.mark.parametrize("weights", UMT5)
@pytest.mark.parametrize("dynamic", [False, True], ids=["legacy", "dynamic"])
def test_an_encoder_beside_experts_in_turn_does_not_come_and_go(
    comfy: ComfyUI, weights: str, dynamic: bool
) -> None:
    """Each expert needs most of the card, so that nothing of the encoder is there when it is used again."""
    if dynamic:
        if not comfy.has_dynamic:
            pytest.skip("This ComfyUI has no dynamic VRAM (it came after 0.3.75).")
        comfy.enable_dynamic()
    core, ours = took(comfy, weights, None), took(comfy, weights, {})
    by_hand = took(comfy, weights, {"text_encoder": "layerwise"})
    print(f"core {core:.0f}, ours {ours:.0f}, layerwise by hand {by_hand:.0f}")  # noqa: T201
    assert ours <= 1.02 * core
    assert ours <= 1.02 * by_hand
