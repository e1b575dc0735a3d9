"""What the automatic rules may look at: frozen facts about the machine and about one component."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MachineFacts:
    """The machine that the workflow runs on. All sizes are bytes.

    Attributes:
        device: the compute device, spelled as torch does (`cuda:0`, `cpu`).
        accelerator: whether that device has memory of its own to place weights in.
        vram_total: device memory; 0 without an accelerator.
        vram_free: device memory free when the facts were taken.
        ram_total: host memory that this process may use.
        ram_available: host memory still available.
        inference_reserve: device memory that ComfyUI keeps for activations.
        flags: the ComfyUI command-line flags that bound placements, spelled as typed.
    """

    device: str
    accelerator: bool
    vram_total: int
    vram_free: int
    ram_total: int
    ram_available: int
    inference_reserve: int = 0
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class ComponentFacts:
    """One component of the workflow.

    Attributes:
        name: its component name (`text_encoder`, `text_encoder_2`, …).
        model: the class of the model, for people.
        bytes: the size of all its weights.
        layers: how many repeated layers were found.
        layer_bytes: how many of the bytes are inside those layers.
        workflow_bytes: the size of all components known in this workflow, this one included.
        on_cpu: whether ComfyUI computes it on the CPU, by its own choice or a command-line flag.
    """

    name: str
    model: str
    bytes: int
    layers: int
    layer_bytes: int
    workflow_bytes: int
    on_cpu: bool = False
