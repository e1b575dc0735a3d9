"""The words of a policy: component names, groups, placements, modes and host tiers.

The groups follow SGLang-Diffusion's component groups: `default` stands for the encoders and the VAEs, and
`audio_vae` / `vocoder` belong to no group, because they are only ever placed by name. `other` is ours: whatever else a
ComfyUI workflow loads, under the names of ComfyUI's types. It is placed on request only, too.
"""

from __future__ import annotations

import re
from enum import Enum

from . import sockets


class Word(str, Enum):
    """A word that people write, and that prints as itself."""

    def __str__(self) -> str:
        return str(self.value)


class Placement(Word):
    """Where a component lives while the workflow runs; `auto` is the word for "decide for me"."""

    AUTO = "auto"
    RESIDENT = "resident"
    LAYERWISE = "layerwise"
    OFFLOAD = "offload"
    CPU = "cpu"


class Mode(Word):
    """What the automatic rules optimise for; `manual` switches them off."""

    AUTO = "auto"
    MANUAL = "manual"
    SPEED = "speed"
    MEMORY = "memory"


class HostTier(Word):
    """Where the masters of streamed layers wait.

    `pinned`: page-locked memory, one copy to the device. `staged`: ordinary memory, copied by a
    thread of its own. `mapped`: the model file itself.
    """

    AUTO = "auto"
    PINNED = "pinned"
    STAGED = "staged"
    MAPPED = "mapped"


IN_SAMPLER = ("control_net", "model_patch", "gligen")
"""What runs inside the diffusion model, step after step, with its tensors."""

OTHERS = tuple(sockets.OTHERS)
"""The types of ComfyUI that hold weights beside MODEL, CLIP, VAE and CLIP_VISION, in lower case."""

GROUPS: dict[str, tuple[str, ...]] = {
    "dit": ("diffusion_model",),
    "text_encoder": ("text_encoder",),
    "image_encoder": ("image_encoder",),
    "vae": ("vae", "video_vae", "condition_image_encoder"),
    "other": OTHERS,
}
"""Group name → base names of its members."""

ALIASES = {"transformer": "diffusion_model"}
"""SGLang-Diffusion's words for components that ComfyUI, and so everything here, calls otherwise."""

UNGROUPED = ("audio_vae", "vocoder")
"""Components that no group contains: they are placed by name, or by `all`."""

COMPONENTS = tuple(name for members in GROUPS.values() for name in members) + UNGROUPED
"""Base names of all components."""

DEFAULT_GROUPS = ("text_encoder", "image_encoder", "vae")
"""What the selector `default` stands for."""

SELECTORS = tuple(dict.fromkeys((*COMPONENTS, *GROUPS, "default", "all")))
"""Everything that a policy can name, apart from numbered components such as `text_encoder_2`."""

NUMBER = r"(?:[2-9]|[1-9][0-9]{1,2})"
"""The number of a repeated component, for JSON Schema too: the first one has none, so it starts at 2."""

_NUMBER = re.compile(NUMBER)


def base_name(component: str) -> str:
    """Drop the number of a repeated component: `text_encoder_2` → `text_encoder`."""
    base, _, number = component.rpartition("_")
    return base if base and _NUMBER.fullmatch(number) else component


def group_of(component: str) -> str | None:
    """Return the group that holds a component, or None when it is placed by name only."""
    base = base_name(component)
    return next((group for group, members in GROUPS.items() if base in members), None)


def is_encoder(component: str) -> bool:
    """Tell whether a component is a text or image encoder: used once per prompt, then idle."""
    return group_of(component) in ("text_encoder", "image_encoder")
