"""Place one object as the loader node does, and small models to place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from . import comfy_models
from .comfyui import ComfyUI

MIB = 1 << 20
BIG = 8 << 30

_PLACES = ("text_encoder", "image_encoder", "vae", "dit")

#: Four layers of 1.1 MB beside a token table of 12.6 MB.
SMALL_CLIP = {**comfy_models.NARROW_CLIP, "intermediate_size": 2048, "num_hidden_layers": 4}


class PlacedObject(NamedTuple):
    """A placed object and what the report says of it."""

    value: Any
    placed: Any

    @property
    def patcher(self) -> Any:
        """The patcher inside; a MODEL is one itself."""
        return getattr(self.value, "patcher", self.value)

    @property
    def row(self) -> Any:
        """The row of the report, read now."""
        return self.placed.row()


def place(
    slot: str,
    value: Any,
    wish: str = "layerwise",
    *,
    host: str = "auto",
    files: Sequence[Path] = (),
    **options: Any,
) -> PlacedObject:
    """Place one object; ``options`` are further widgets of the policy, such as ``vram_budget="16MB"``."""
    from offload_runtime.adapter import Placements, apply_policy
    from offload_runtime.policy import Policy, Source, SourceKind

    source = Source(SourceKind.NODE, "Placement Policy, node 1")
    policy = Policy.from_widgets(source, placements=dict.fromkeys(_PLACES, wish), **options)
    policy = policy.extended(Policy.for_component(source, "all", host=host))
    out, placements = apply_policy(policy, {slot: value}, {slot: list(files)}, Placements())
    return PlacedObject(out[slot], placements.placed[0])


def small_clip(comfy: ComfyUI, device: Any = None, **options: Any) -> Any:
    """A CLIP-L that encodes in a fraction of a second."""
    return comfy_models.clip_l(comfy, device, SMALL_CLIP, **options)


def lora(clip: Any, strength: float = 1.0, seed: int = 3) -> Any:
    """A clone with a patch on two maps of every layer, as a LoRA loader makes it."""
    generator = torch.Generator().manual_seed(seed)
    state = clip.patcher.model_state_dict()
    keys = [key for key in state if key.endswith(("mlp.fc1.weight", "q_proj.weight"))]
    clone = clip.clone()
    patches = {key: (torch.randn(state[key].shape, generator=generator) * 0.05,) for key in keys}
    assert set(clone.add_patches(patches, strength)) == set(keys)
    return clone


@contextmanager
def vram_state(comfy: ComfyUI, name: str) -> Iterator[None]:
    """ComfyUI in another memory mode, such as ``NO_VRAM``, for models that exist already."""
    before, comfy.mm.vram_state = comfy.mm.vram_state, comfy.mm.VRAMState[name]
    try:
        yield
    finally:
        comfy.mm.vram_state = before


def loaded(comfy: ComfyUI) -> int:
    """What ComfyUI believes to be on the card."""
    return sum(m.model.loaded_size() for m in comfy.mm.current_loaded_models if m.model is not None)


def end_node(comfy: ComfyUI) -> None:
    """Give back what 0.33's executor gives back after every node: the buffers of its casts."""
    if hasattr(comfy.mm, "reset_cast_buffers"):
        comfy.mm.reset_cast_buffers()


def ours_on(model: torch.nn.Module) -> set[str]:
    """The attributes of ours that are on a model now."""
    names = {"forward", "get_input_embeddings"}
    return {name for module in model.modules() for name in names & set(module.__dict__)}
