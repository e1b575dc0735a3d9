"""What a new prompt costs on cards around the one that all models just fit on.

`python -m bench.fit_point [PAIRS [DEMANDS [CARDS [MANAGER [WISHES [DECODING]]]]]]`, for example
`t5xxl:12,qwen7b:20 0,1,2,4 -512,3072,64 legacy text_encoder=resident,vae=resident 4`: encoder and gigabytes of the
diffusion model, or `six` for all that are swept; the gigabytes that a sampler asks for beside the weights; the cards,
in MB from the fit point, or `around` it in steps of 64 MB as far as the demand is felt; `legacy` or `dynamic`; what is
set by hand, or `auto`; and the gigabytes that a VAE asks for to decode, 0 for no VAE.

Simulated milliseconds of a prompt with its first step, or with its step and its picture where there is a VAE: the last
of five, on an RTX 4090 (25 GB/s) that is cut to size. More memory must never make it slower, and ours must never be
slower than leaving the pack out: rows that break this by more than 3 and 2 % are marked, and counted at the end. Where
ours takes no longer than ComfyUI does on a card with room to spare, ComfyUI is not run. Layers run their maps only.
The whole sweep, in parts that can be run one after the other: each of the six pairs with `0,1,2,4 around` and either
manager. Needs ComfyUI in COMFYUI_PATH. No time here was measured on a card.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping
from typing import NamedTuple

import torch

from tests.sim import Accelerator
from tests.sim.comfyui import ComfyUI
from tests.sim.prompt_change import GB, Workflow, encoder_of_maps

MB = 1024**2
PROMPTS = 5  # the fourth may still pack what the third has left on the host
SIX = "t5xxl:6,t5xxl:12,t5xxl:20,qwen7b:6,qwen7b:12,qwen7b:20"
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
        encoder = encoder_of_maps(comfy, self.encoder)
        taken = self.demand // 2  # ComfyUI's estimates are generous, and this is the least that it keeps free
        return Workflow(comfy, encoder, self.gigabytes, self.demand, self.decoding, taken)

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


def around(demand: int) -> range:
    """Return the cards on which it makes a difference how much a sampler asks for, in MB from the fit point."""
    return range(-512, demand // MB + 769, 64)


def sweep(case: Case, cards: range) -> tuple[int, int]:
    """Print one line per card; returns how many there were, and how many broke a promise."""
    least, fit, broken = float("inf"), fit_point(case), 0
    quickest, _ = run(case, fit + 64 * GB, ours=False)
    for beyond in cards:
        ours, decided = run(case, fit + beyond * MB, ours=True)
        spared = ours <= SLOWER_THAN_CORE * quickest
        core = quickest if spared else run(case, fit + beyond * MB, ours=False)[0]
        marks = [" slower than core"] if ours > SLOWER_THAN_CORE * core else []
        marks += [" slower than with less memory"] if ours > SLOWER_THAN_LESS * least else []
        least, broken = min(least, ours), broken + bool(marks)
        shown = f"{'':9}" if spared else f"{core:9.1f}"
        print(f"{case!s:32}{beyond:+6} MB {shown}{ours:9.1f}  {decided}{''.join(marks)}", flush=True)
    return len(cards), broken


def main(arguments: list[str]) -> None:
    usual = ["t5xxl:12", "2", "-128,1280,256", "legacy", "auto", "0"]
    pairs, demands, cards, manager, wishes, decoding = [*arguments, *usual[len(arguments) :]][:6]
    asked = {} if wishes == "auto" else dict(wish.split("=") for wish in wishes.split(","))
    gc.freeze()  # what is imported by now is no garbage of a run
    points = broken = 0
    print(f"{'':32}{'card':>9} {'core':>9}{'ours':>9}  (simulated ms, {manager})")
    for name in (SIX if pairs == "six" else pairs).split(","):
        encoder, _, gigabytes = name.partition(":")
        for demand in (int(float(text) * GB) for text in demands.split(",")):
            case = Case(
                encoder, int(gigabytes), demand, manager == "dynamic", asked, int(float(decoding) * GB)
            )
            found = sweep(case, around(demand) if cards == "around" else _range(cards))
            points, broken = points + found[0], broken + found[1]
    print(f"{points} cards, {broken} with a broken promise")


def _range(cards: str) -> range:
    low, high, step = map(int, cards.split(","))
    return range(low, high + 1, step)


if __name__ == "__main__":
    main(sys.argv[1:])
