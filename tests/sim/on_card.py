"""A model of quantised blocks on the card, and what it answers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from offload_runtime.engine.parts import distinct_parts

from .comfyui import ComfyUI
from .placing import end_node, vram_state
from .quantised import GIVEN, INNER, WIDTH


class OnCard:
    """What the tests of quantised models do with theirs.

    Args:
        comfy: ComfyUI.
        model: a stack of blocks, `model.blocks`.
        wired: its patcher, as a loader hands it on.
    """

    def __init__(self, comfy: ComfyUI, model: nn.Module, wired: Any) -> None:
        self.comfy, self.model, self.wired = comfy, model, wired

    def __call__(self, patcher: Any) -> torch.Tensor:
        self.comfy.mm.load_models_gpu([patcher])
        result = self.model(GIVEN.to(self.comfy.sim.device)).cpu()
        end_node(self.comfy)
        return result

    def core(self, patcher: Any, state: str = "NORMAL_VRAM") -> torch.Tensor:
        """What it answers without us, whole on the card, or (`NO_VRAM`) streamed by ComfyUI itself."""
        with vram_state(self.comfy, state):
            result = self(patcher)
        self.comfy.mm.unload_all_models()
        return result

    def blocks(self) -> set[int]:
        """Where the memory is that the weights view."""
        return {part.untyped_storage().data_ptr() for part in distinct_parts(self.model.parameters())}

    def with_lora(self) -> Any:
        """A clone with a patch on one map of every block."""
        clone, generator = self.wired.clone(), torch.Generator().manual_seed(3)
        keys = [f"blocks.{i}.up.weight" for i in range(len(self.model.blocks))]
        patches = {key: (torch.randn(INNER, WIDTH, generator=generator) * 0.05,) for key in keys}
        assert set(clone.add_patches(patches, 1.0)) == set(keys)
        return clone
