"""What the automatic rules may look at: frozen facts about the machine, a component, and what is not ours to place."""

from __future__ import annotations

from dataclasses import dataclass

from .capabilities import STREAMED, Capabilities
from .components import IN_SAMPLER, base_name, group_of


@dataclass(frozen=True)
class MachineFacts:
    """The machine that the workflow runs on. All sizes are bytes.

    Attributes:
        device: the compute device, spelled as torch does (`cuda:0`, `cpu`).
        accelerator: whether that device is more than the CPU.
        vram_total: device memory; 0 without an accelerator.
        vram_free: device memory free when the facts were taken.
        ram_total: host memory that this process may use, container limits counted.
        ram_available: host memory still available to it.
        inference_reserve: device memory that ComfyUI keeps for activations, `--reserve-vram` counted, and
            `--vram-headroom` where dynamic VRAM is in force.
        vram_others: device memory that other programs hold, so that no plan may count on it.
        pin_limit: page-locked host memory that may still be taken; None for "not known".
        accelerators: how many accelerators the machine has.
        shared_memory: whether device and host memory are the same chips, so that moving frees nothing.
        dynamic_vram: whether ComfyUI pages weights in on demand by itself.
        margin: device memory that is to be left free, because the workflow has run out of it.
        ran_out: the component that did, or "".
        flags: the ComfyUI command-line flags that bear on placements, spelled as typed.
    """

    device: str
    accelerator: bool
    vram_total: int
    vram_free: int
    ram_total: int
    ram_available: int
    inference_reserve: int = 0
    vram_others: int = 0
    pin_limit: int | None = None
    accelerators: int = 1
    shared_memory: bool = False
    dynamic_vram: bool = False
    margin: int = 0
    ran_out: str = ""
    flags: tuple[str, ...] = ()

    def flag(self, name: str) -> str | None:
        """Return a flag as it was typed (`--reserve-vram 4`), or None when it was not given."""
        return next((flag for flag in self.flags if flag.split(" ", 1)[0] == name), None)


@dataclass(frozen=True)
class ComponentFacts:
    """One component of the workflow. All sizes are bytes.

    Attributes:
        name: its component name (`text_encoder`, `text_encoder_2`, …).
        model: the class of the model, for people.
        bytes: the size of all its weights.
        layers: how many repeated layers can be streamed.
        layer_bytes: how many of the bytes are inside those layers.
        slot_bytes: the device memory that streaming them takes at a time; 0 for two layers of average size.
        least_bytes: the device memory that streaming them takes at least, however little is allowed.
        why_no_layers: why none can be streamed, when none can.
        pinned_bytes: how many bytes of its layers are page-locked already.
        bytes_to_add: host memory that its layers take beside what they take now, once they are packed.
        on_cpu: whether ComfyUI computes it on the CPU, by its own choice or a command-line flag.
        passes: how often its layers ran per use, as the last trace showed; None before the first use.
        activation_bytes: device memory that ComfyUI asked for beside its weights in the last uses; 0 before the first.
        can: what its backend can carry out.
        file_bytes: how many bytes of its layers can be read from the model file; None for "not looked".
        file_beside_bytes: how many bytes beside its layers rest in the file when those do.
        table_bytes: how many bytes are token tables, which are looked up on the host while its layers stream.
        loose_bytes: how many bytes of weights are brought to the device with the load while its layers stream.
        why_no_file: why none are read from a file, when none are, as a sentence without its full stop.
        stored_bytes: how many bytes of its weights are in no model file, and were written to one of ours.
        stored_in: the folder of that.
        why_not_stored: why they were not, though somebody asked, as the end of a sentence.
        replaces: what placed the same model before in this workflow, or "".
        spread: over how many devices its weights are split.
        in_turn: of a diffusion model: whether it runs while no other one does, so that they need no room together.
    """

    name: str
    model: str
    bytes: int
    layers: int
    layer_bytes: int
    slot_bytes: int = 0
    least_bytes: int = 0
    why_no_layers: str = "no repeated layers were found in it"
    pinned_bytes: int = 0
    bytes_to_add: int = 0
    on_cpu: bool = False
    passes: int | None = None
    activation_bytes: int = 0
    can: Capabilities = STREAMED
    file_bytes: int | None = None
    file_beside_bytes: int = 0
    table_bytes: int = 0
    loose_bytes: int = 0
    why_no_file: str = "no file holds the same weights"
    stored_bytes: int = 0
    stored_in: str = ""
    why_not_stored: str = ""
    replaces: str = ""
    spread: int = 1
    in_turn: bool = True

    @property
    def takes_turns(self) -> bool:
        """Whether it is a diffusion model that needs no room while another one runs."""
        return self.in_turn and group_of(self.name) == "dit"

    @property
    def device_bytes(self) -> int:
        """Its share of the weights on one device, when it is whole."""
        return -(-self.bytes // max(self.spread, 1))

    @property
    def window(self) -> int:
        """What streaming needs at a time: what runs and what comes in behind it."""
        return min(self.slot_bytes or -(-2 * self.layer_bytes // max(self.layers, 1)), self.layer_bytes)

    @property
    def loops(self) -> bool:
        """Whether its layers run more than once per use, so that streaming would copy them again and again.

        Until a trace says so, a diffusion model (steps), what runs inside it, and a video VAE (chunks) are taken to
        loop.
        """
        if self.passes is not None:
            return self.passes > 1
        return group_of(self.name) == "dit" or base_name(self.name) in ("video_vae", *IN_SAMPLER)


@dataclass(frozen=True)
class BystanderFacts:
    """A model that the workflow uses and that is not ours to place: ComfyUI does, and it takes room all the same.

    Attributes:
        name: what people call it: the name of its file, mostly.
        bytes: the size of its weights, or 0 for "not known".
        group: the group of components that it would be in, or None.
        on_host: whether ComfyUI keeps it in host memory, so that it takes no room on the device.
        in_turn: whether it is a diffusion model that runs while no other one does.
        video: whether it is a VAE that makes video.
    """

    name: str
    bytes: int
    group: str | None = None
    on_host: bool = False
    in_turn: bool = False
    video: bool = False
