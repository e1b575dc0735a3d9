"""ComfyUI's command line as a source of preferences.

A flag that says what a person likes is a preference: it stands below nodes and files, above automatic. What a
flag makes impossible is a bound (`bounds.py`): it holds for every source. Some flags are both.
"""

from __future__ import annotations

from collections.abc import Callable

from .arguments import Argument, Source, SourceKind
from .components import Placement
from .facts import MachineFacts
from .policy import Policy
from .settings import Setting

FLAGS = (
    "--cpu",
    "--cpu-vae",
    "--gpu-only",
    "--highvram",
    "--normalvram",
    "--lowvram",
    "--novram",
    "--reserve-vram",
    "--vram-headroom",
    "--disable-smart-memory",
    "--async-offload",
    "--disable-async-offload",
    "--disable-pinned-memory",
    "--disable-dynamic-vram",
    "--enable-dynamic-vram",
    "--directml",
    "--disable-mmap",
    "--force-fp32",
    "--force-fp16",
    *(f"--{dtype}-text-enc" for dtype in ("fp8_e4m3fn", "fp8_e5m2", "fp16", "bf16", "fp32")),
    *(f"--{dtype}-vae" for dtype in ("fp16", "bf16", "fp32")),
    *(
        f"--{dtype}-unet"
        for dtype in ("fp8_e4m3fn", "fp8_e5m2", "fp8_e8m0fnu", "fp16", "bf16", "fp32", "fp64")
    ),
)
"""The flags of all supported ComfyUI versions that bear on placements; a version lacks some of them.

Where a flag has ComfyUI round weights to another dtype, their file does not hold them.
"""

_PREFERENCES: tuple[tuple[str, str, Placement, Callable[[MachineFacts], bool]], ...] = (
    ("--gpu-only", "all", Placement.RESIDENT, lambda machine: True),
    ("--highvram", "all", Placement.RESIDENT, lambda machine: True),
    ("--cpu-vae", "vae", Placement.CPU, lambda machine: True),
    # With dynamic VRAM this flag does nothing (ComfyUI's own help says so).
    ("--lowvram", "text_encoder", Placement.CPU, lambda machine: not machine.dynamic_vram),
)
"""Flag, selector, placement that it stands for, and when it has an effect."""


def command_line_policy(machine: MachineFacts) -> Policy:
    """Return what the command line asks for; empty without an accelerator, where every flag says the same."""
    if not machine.accelerator:
        return Policy()
    return Policy(
        tuple(
            Argument(Setting.PLACEMENT, selector, placement, Source(SourceKind.COMMAND_LINE, typed))
            for flag, selector, placement, holds in _PREFERENCES
            if (typed := machine.flag(flag)) is not None and holds(machine)
        )
    )
