"""What an image takes with the pack ÷ without it, when several prompts are encoded for it.

`python -m bench.encodes [ENCODES [STEPS]]` prints a table: every text is new for every image, nothing is asked for,
and the third image counts. `python -m bench.encodes random [COUNT [FIRST]]` tries random workloads instead, two
images each with dynamic VRAM and three without, and ends with the worst of them. On a simulated RTX 4090 (25 GB/s)
that is cut to the size of the card; needs ComfyUI in COMFYUI_PATH, with dynamic VRAM for that. No time here was
measured on a card.
"""

from __future__ import annotations

import gc
import sys
from typing import NamedTuple

from tests.sim.encodes import Work, all_new, random_work, render

CARDS = ((24, 12, 12), (24, 12, 16), (35, 12, 24))
"""Layers of the encoder (0.4 GB each), gigabytes of the diffusion model and of the card."""


class Ratios(NamedTuple):
    """With the pack ÷ without it.

    Attributes:
        images: the whole time of each image.
        prompt: what the last image takes beyond its steps; None where that is next to nothing without the pack.
        seconds: the whole times without the pack.
    """

    images: list[float]
    prompt: float | None
    seconds: list[float]


def ratios(work: Work, images: int = 3) -> Ratios:
    """Render the same images with the pack and without."""
    texts = all_new(work.encodes, images)
    ours, core = (render(work, texts, ours=who) for who in (True, False))
    whole = [a.seconds / b.seconds for a, b in zip(ours, core, strict=True)]
    told = core[-1].beyond > 0.01 * core[-1].seconds
    prompt = ours[-1].beyond / core[-1].beyond if told else None
    return Ratios(whole, prompt, [image.seconds for image in core])


def table(encodes: list[int], steps: int) -> None:
    """Print one line for each card and memory manager."""
    print(f"{'':42}{''.join(f'{n:7}' for n in encodes)}   encodes")
    for dynamic in (True, False):
        for layers, gigabytes, card in CARDS:
            works = (Work(layers, gigabytes, card, steps, n, dynamic) for n in encodes)
            cells = (f"{ratios(work).images[-1]:7.2f}" for work in works)
            manager = "dynamic VRAM" if dynamic else "legacy"
            size = f"{layers * 0.403 + 0.26:.1f} + {gigabytes} GB on {card} GB"
            print(f"{manager:14}{size:28}{''.join(cells)}", flush=True)


def at_random(count: int, first: int) -> None:
    """Print every workload as it ends, and then the worst."""
    render(random_work(first), all_new(1, 1), ours=True)
    gc.freeze()  # what was imported: looking through it after every workload takes longer than the workload
    seen = []
    for seed in range(first, first + count):
        work = random_work(seed)
        got = ratios(work, 2 if work.dynamic else 3)
        seen.append((max(got.images), seed))
        cells = (*(f"{r:.3f}" for r in got.images), *(f"{s:.2f}s" for s in got.seconds))
        prompt = "-" if got.prompt is None else f"{got.prompt:.2f}"
        print(seed, *work, *cells, f"prompt {prompt}", flush=True)
    worse = sum(ratio > 1.02 for ratio, _ in seen)
    print(f"{worse} of {count} take more than 1.02 of the time; the worst: {sorted(seen, reverse=True)[:12]}")


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["random"]:
        count, first = (*map(int, arguments[1:]), *(100, 0)[len(arguments) - 1 :])
        at_random(count, first)
        return
    encodes, steps = (arguments + ["1,2,4,8", "8"][len(arguments) :])[:2]
    table([int(n) for n in encodes.split(",")], int(steps))


if __name__ == "__main__":
    main(sys.argv[1:])
