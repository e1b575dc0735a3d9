"""What a new prompt costs while the diffusion model is loaded. `python -m bench.prompt_change [ENCODERS [GB [CARDS]]]`

Seconds from the prompt to the end of the first sampling step, less a later step of the same system, less the same
with everything resident; on a simulated RTX 4090 (25 GB/s) that is cut to 12, 16 and 24 GB. `limit` is the time
that the link needs for the bytes that cannot stay on the card: encoder, diffusion model and activations, less the
card; at most the encoder without its token table, which can be looked up in memory. Needs ComfyUI in COMFYUI_PATH,
with dynamic VRAM for those columns; its native layer is the stand-in of `tests/sim/aimdo`, whose policy was compared
with the real one. No time here was measured on a card.
"""

from __future__ import annotations

import functools
import gc
import sys
from typing import NamedTuple

import torch

from tests.sim import Accelerator
from tests.sim.comfyui import ComfyUI
from tests.sim.prompt_change import GB, Workflow

ROOMY = 64
PROMPTS = 4  # the third still pins what the second has left on the host
LINK = 25e9


class Cell(NamedTuple):
    """One system on one card: what the last prompt cost in seconds, and the bytes of what it ran."""

    seconds: float
    weights: int
    layers: int
    activations: int


@functools.cache
def run(encoder: str, gigabytes: int, card: int, *, dynamic: bool, ours: bool) -> Cell | None:
    """Send several prompts through a workflow; None where this ComfyUI has no dynamic VRAM."""
    with Accelerator("rtx4090", shapes=True, cap=card * GB) as sim, torch.inference_mode():
        comfy = ComfyUI(sim)
        try:
            if dynamic and not comfy.has_dynamic:
                return None
            if dynamic:
                comfy.enable_dynamic()
            return _last_prompt(comfy, Workflow(comfy, encoder, gigabytes), ours)
        finally:
            gc.collect()
            comfy.close()


def _last_prompt(comfy: ComfyUI, workflow: Workflow, ours: bool) -> Cell:
    if ours:
        workflow.place()
    for _ in range(PROMPTS):
        comfy.sim.memory.reset_peak()
        took = workflow.prompt()
        took -= workflow.steady_step()
    return Cell(took / 1e3, *_sizes(workflow, comfy.sim.memory.peak))


def _sizes(workflow: Workflow, peak: int) -> tuple[int, int, int]:
    """Return the bytes of all weights, of the encoder's without its table, and of what else was in use."""
    encoder = workflow.encoder.model
    loaded = workflow.encoder.loaded_size() + workflow.diffusion.loaded_size()
    whole = _bytes(encoder)
    return whole + _bytes(workflow.diffusion.model), whole - _bytes(encoder.embed), peak - loaded


def _bytes(model: torch.nn.Module) -> int:
    return sum(parameter.nbytes for parameter in model.parameters())


def row(encoder: str, gigabytes: int, card: int) -> str:
    """Return one line of the table."""
    cells = []
    for dynamic in (True, False):
        resident = run(encoder, gigabytes, ROOMY, dynamic=dynamic, ours=False)
        core, ours = (run(encoder, gigabytes, card, dynamic=dynamic, ours=who) for who in (False, True))
        if resident is None or core is None or ours is None:
            cells.append(f"{'no dynamic VRAM in this ComfyUI':>38}")
            continue
        stay_out = resident.weights + resident.activations - card * GB
        limit = max(0, min(stay_out, resident.layers)) / LINK
        cost, theirs = (cell.seconds - resident.seconds for cell in (ours, core))
        share = f"{cost / limit:7.2f}" if limit else f"{'fits':>7}"
        cells.append(f"{theirs:9.3f}{cost:9.3f}{limit:9.3f}{share}")
    return f"{encoder:8}{gigabytes:4} GB{card:5} GB |{' |'.join(cells)}"


def main(arguments: list[str]) -> None:
    encoders, sizes, cards = (
        given.split(",")
        for given in (arguments + ["t5xxl,qwen7b", "12,20", "12,16,24"][len(arguments) :])[:3]
    )
    columns = f"{'core':>9}{'ours':>9}{'limit':>9}{'of it':>7}"
    print(f"{'':23} |{'dynamic VRAM':^34} |{'legacy':^34}")
    print(f"{'encoder':8}{'model':>7}{'card':>8} |{columns} |{columns}   (simulated seconds)")
    for encoder in encoders:
        for gigabytes in map(int, sizes):
            for card in map(int, cards):
                print(row(encoder, gigabytes, card), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
