"""What a new prompt costs on cards around the one that all models just fit on.

`python -m bench.fit_point [PAIRS [DEMANDS [FROM,TO,STEP [MANAGER [WISHES [DECODING]]]]]]`, for example
`t5xxl:12,qwen7b:20 0,1,2,4 -512,3072,64 legacy text_encoder=resident,vae=resident 4`: encoder and gigabytes of the
diffusion model; the gigabytes that a sampler asks for beside the weights; the cards, in MB from the fit point;
`legacy` or `dynamic`; what is set by hand, or `auto`; and the gigabytes that a VAE asks for to decode, 0 for no VAE.

Simulated milliseconds of a prompt with its first step, or with its step and its picture where there is a VAE: the last
of five, on an RTX 4090 (25 GB/s) that is cut to size. More memory must never make it slower, and ours must never be
slower than leaving the pack out: rows that break this by more than 3 and 2 % are marked. Needs ComfyUI in COMFYUI_PATH.
No time here was measured on a card.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping
from typing import NamedTuple

import torch

from tests.sim import Accelerator
from tests.sim.comfyui import ComfyUI
from tests.sim.prompt_change import GB, Workflow

MB = 1024**2
PROMPTS = 5  # the fourth may still pack what the third has left on the host
SLOWER_THAN_CORE, SLOWER_THAN_LESS = 1.02, 1.03


class Case(NamedTuple):
    """What runs.

    Attributes:
        encoder: the name of its geometry.
        gigabytes: the size of the diffusion model.
        demand: the bytes that a sampler asks for beside the weights.
        dynamic: whether ComfyUI's dynamic VRAM is on.
        wishes: what is set by hand.
        decoding: the bytes that a VAE asks for; 0 for no VAE.
    """

    encoder: str
    gigabytes: int
    demand: int
    dynamic: bool = False
    wishes: Mapping[str, str] = {}
    decoding: int = 0

    def workflow(self, comfy: ComfyUI) -> Workflow:
        """Return it, with nothing placed."""
        return Workflow(comfy, self.encoder, self.gigabytes, self.demand, self.decoding)

    def __str__(self) -> str:
        wishes = "".join(f", {name} {word}" for name, word in self.wishes.items())
        decoding = f", decoding {self.decoding / GB:g} GB" if self.decoding else ""
        return f"{self.encoder} + {self.gigabytes} GB, {self.demand / GB:g} GB asked for{decoding}{wishes}"


def run(case: Case, card: int, *, ours: bool) -> tuple[float, str]:
    """Send prompts through a workflow; returns the milliseconds of the last, and what was decided for each model."""
    with Accelerator("rtx4090", shapes=True, cap=card) as sim, torch.inference_mode():
        comfy = ComfyUI(sim)
        try:
            if case.dynamic:
                comfy.enable_dynamic()
            workflow = case.workflow(comfy)
            decided = workflow.place(placements=case.wishes).decided if ours else ()
            for _ in range(PROMPTS):
                if case.decoding:
                    took = workflow.picture()
                else:
                    took = workflow.prompt()
                    workflow.steady_step()
            return took, " ".join(str(decision.placement) for _, decision in decided)
        finally:
            gc.collect()
            comfy.close()


def fit_point(case: Case) -> int:
    """Return the bytes of the card on which the weights of all just fit beside ComfyUI's reserve."""
    with Accelerator("rtx4090", shapes=True, cap=64 * GB) as sim:
        comfy = ComfyUI(sim)
        try:
            return case.workflow(comfy).fit_point
        finally:
            comfy.close()


def sweep(case: Case, cards: range) -> None:
    """Print one line per card."""
    least, fit = float("inf"), fit_point(case)
    for beyond in cards:
        core, _ = run(case, fit + beyond * MB, ours=False)
        ours, decided = run(case, fit + beyond * MB, ours=True)
        marks = [" slower than core"] if ours > SLOWER_THAN_CORE * core else []
        marks += [" slower than with less memory"] if ours > SLOWER_THAN_LESS * least else []
        least = min(least, ours)
        print(f"{case!s:32}{beyond:+6} MB {core:9.1f}{ours:9.1f}  {decided}{''.join(marks)}", flush=True)


def main(arguments: list[str]) -> None:
    usual = ["t5xxl:12", "2", "-128,1280,256", "legacy", "auto", "0"]
    pairs, demands, cards, manager, wishes, decoding = [*arguments, *usual[len(arguments) :]][:6]
    asked = {} if wishes == "auto" else dict(wish.split("=") for wish in wishes.split(","))
    low, high, step = map(int, cards.split(","))
    print(f"{'':32}{'card':>9} {'core':>9}{'ours':>9}  (simulated ms, {manager})")
    for name in pairs.split(","):
        encoder, _, gigabytes = name.partition(":")
        for demand in demands.split(","):
            bytes_asked, bytes_decoding = int(float(demand) * GB), int(float(decoding) * GB)
            case = Case(encoder, int(gigabytes), bytes_asked, manager == "dynamic", asked, bytes_decoding)
            sweep(case, range(low, high + 1, step))


if __name__ == "__main__":
    main(sys.argv[1:])
