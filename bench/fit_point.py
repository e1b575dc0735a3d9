"""What a new prompt costs on cards around the one that both models just fit on.

`python -m bench.fit_point [PAIRS [DEMANDS [FROM,TO,STEP [MANAGER]]]]`, for example
`t5xxl:12,qwen7b:20 0,1,2,4 -512,3072,64 legacy`: encoder and gigabytes of the diffusion model; the gigabytes that a
sampler asks for beside the weights; the cards, in MB from the fit point; and `legacy` or `dynamic`.

Simulated milliseconds of a prompt with its first step, the last of five, on an RTX 4090 (25 GB/s) that is cut to size.
More memory must never make it slower, and ours must never be slower than leaving the pack out: rows that break this
by more than 3 and 2 % are marked. Needs ComfyUI in COMFYUI_PATH. No time here was measured on a card.
"""

from __future__ import annotations

import gc
import sys

import torch

from tests.sim import Accelerator
from tests.sim.comfyui import ComfyUI
from tests.sim.prompt_change import GB, Workflow

MB = 1024**2
PROMPTS = 5  # the fourth may still pack what the third has left on the host
SLOWER_THAN_CORE, SLOWER_THAN_LESS = 1.02, 1.03


def run(pair: tuple[str, int], card: int, demand: int, *, dynamic: bool, ours: bool) -> tuple[float, str]:
    """Send prompts through a workflow; returns the milliseconds of the last, and what was decided for the encoder."""
    with Accelerator("rtx4090", shapes=True, cap=card) as sim, torch.inference_mode():
        comfy = ComfyUI(sim)
        try:
            if dynamic:
                comfy.enable_dynamic()
            workflow = Workflow(comfy, *pair, demand)
            decided = str(workflow.place().decisions[0].placement) if ours else ""
            for _ in range(PROMPTS):
                took = workflow.prompt()
                workflow.steady_step()
            return took, decided
        finally:
            gc.collect()
            comfy.close()


def fit_point(pair: tuple[str, int]) -> int:
    """Return the bytes of the card on which the weights of both just fit beside ComfyUI's reserve."""
    with Accelerator("rtx4090", shapes=True, cap=64 * GB) as sim:
        comfy = ComfyUI(sim)
        try:
            return Workflow(comfy, *pair).fit_point
        finally:
            comfy.close()


def sweep(pair: tuple[str, int], demand: int, cards: range, *, dynamic: bool) -> None:
    """Print one line per card."""
    least, fit = float("inf"), fit_point(pair)
    for beyond in cards:
        core, _ = run(pair, fit + beyond * MB, demand, dynamic=dynamic, ours=False)
        ours, decided = run(pair, fit + beyond * MB, demand, dynamic=dynamic, ours=True)
        marks = [" slower than core"] if ours > SLOWER_THAN_CORE * core else []
        marks += [" slower than with less memory"] if ours > SLOWER_THAN_LESS * least else []
        least = min(least, ours)
        name = f"{pair[0]} + {pair[1]} GB, {demand / GB:g} GB asked for"
        print(f"{name:32}{beyond:+6} MB {core:9.1f}{ours:9.1f}  {decided}{''.join(marks)}", flush=True)


def main(arguments: list[str]) -> None:
    usual = ["t5xxl:12", "2", "-128,1280,256", "legacy"]
    pairs, demands, cards, manager = [*arguments, *usual[len(arguments) :]][:4]
    print(f"{'':32}{'card':>9} {'core':>9}{'ours':>9}  (simulated ms, {manager})")
    for name in pairs.split(","):
        encoder, _, gigabytes = name.partition(":")
        for demand in demands.split(","):
            low, high, step = map(int, cards.split(","))
            sweep(
                (encoder, int(gigabytes)),
                int(float(demand) * GB),
                range(low, high + 1, step),
                dynamic=manager == "dynamic",
            )


if __name__ == "__main__":
    main(sys.argv[1:])
