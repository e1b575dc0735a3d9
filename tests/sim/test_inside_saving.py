"""ComfyUI's nodes that save, on a card: the same file as without us, whatever is streamed or stays in another dtype."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from . import comfy_models
from .comfyui import ComfyUI
from .placing import end_node, lora
from .test_inside_model_loaders import card, load, ours

__all__ = ["card", "load"]

pytestmark = pytest.mark.usefixtures("_inference_mode")


def save(clip: Any, folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    """Save with ComfyUI's node, and return file → its tensors; one that was saved before is replaced."""
    node = importlib.import_module("comfy_extras.nodes_model_merging").CLIPSave()
    node.output_dir = str(folder)
    node.save(clip, filename_prefix="model")
    return {file.name: load_file(file) for file in folder.iterdir()}


@pytest.mark.parametrize("wish", ["layerwise", "layerwise mapped", "resident", "auto"])
@pytest.mark.parametrize("patched", [False, True])
@pytest.mark.parametrize("used", [False, True])
def test_what_our_loader_loaded_is_saved_as_what_comfyui_s_loaded(
    card: ComfyUI, load: Callable[[], Any], wish: str, patched: bool, used: bool, tmp_path: Path
) -> None:
    found = []
    for number, make in enumerate((load, lambda: ours(load, *wish.split())[0])):
        clip = make()
        if patched:
            clip = lora(clip)
        if used:
            comfy_models.encode(clip, "fox")
            end_node(card)
        (folder := tmp_path / str(number)).mkdir()
        found.append(save(clip, folder))
        end_node(card)
        card.mm.unload_all_models()
        del clip
    without, with_us = found
    assert with_us.keys() == without.keys()
    for name, weights in without.items():
        assert with_us[name].keys() == weights.keys()
        for key, weight in weights.items():
            assert with_us[name][key].dtype == weight.dtype, key
            assert torch.equal(with_us[name][key].float(), weight.float()), key
