"""What an image takes with the pack ÷ without it, when several prompts are encoded for it.

`python -m bench.encodes [ENCODES [STEPS]]` prints a table: every text is new for every image, nothing is asked for,
and the third image counts. `python -m bench.encodes random [COUNT [FIRST]]` tries random workloads instead, three
images each, and prints the worst first. On a simulated RTX 4090 (25 GB/s) that is cut to the size of the card;
needs ComfyUI in COMFYUI_PATH, with dynamic VRAM for that. No time here was measured on a card.
"""

from __future__ import annotations

import gc
import sys

from tests.sim.encodes import Work, all_new, random_work, render

CARDS = ((24, 12, 12), (24, 12, 16), (35, 12, 24))
"""Layers of the encoder (0.4 GB each), gigabytes of the diffusion model and of the card."""


def ratios(work: Work, images: int = 3) -> tuple[list[float], list[float]]:
    """Return what each image takes with the pack ÷ without, and the seconds without."""
    texts = all_new(work.encodes, images)
    ours, core = (render(work, texts, ours=who) for who in (True, False))
    return [a / b for a, b in zip(ours, core, strict=True)], core


def table(encodes: list[int], steps: int) -> None:
    """Print one line for each card and memory manager."""
    print(f"{'':42}{''.join(f'{n:7}' for n in encodes)}   encodes")
    for dynamic in (True, False):
        for layers, gigabytes, card in CARDS:
            cells = []
            for n in encodes:
                work = Work(layers, gigabytes, card, steps, n, dynamic)
                cells.append(f"{ratios(work)[0][-1]:7.2f}")
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
        got, core = ratios(work)
        seen.append((max(got), seed))
        print(seed, *work, *(f"{r:.3f}" for r in got), *(f"{s:.2f}" for s in core), flush=True)
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
