"""ComfyUI's nodes that save, on a card: the same file as without us, whatever is streamed or stays in another dtype."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from . import comfy_models
from .comfyui import ComfyUI
from .placing import BIG, end_node, lora, place
from .test_inside_model_loaders import card, load, ours

__all__ = ["card", "load"]

pytestmark = pytest.mark.usefixtures("_inference_mode")


Saved = dict[str, dict[str, torch.Tensor]]


def save(value: Any, folder: Path, kind: str = "CLIPSave") -> Saved:
    """Save with one of ComfyUI's nodes, and return file → its tensors."""
    folder.mkdir()
    node = getattr(importlib.import_module("comfy_extras.nodes_model_merging"), kind)()
    node.output_dir = str(folder)
    node.save(value, filename_prefix="model")
    return {file.name: load_file(file) for file in folder.iterdir()}


def check_equal(without: Saved, with_us: Saved) -> None:
    assert with_us.keys() == without.keys()
    for name, weights in without.items():
        assert with_us[name].keys() == weights.keys()
        for key, weight in weights.items():
            assert with_us[name][key].dtype == weight.dtype, key
            assert torch.equal(with_us[name][key].float(), weight.float()), key


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
        found.append(save(clip, tmp_path / str(number)))
        end_node(card)
        card.mm.unload_all_models()
        del clip
    check_equal(*found)


@pytest.mark.parametrize("host", ["pinned", "mapped"])
def test_a_patched_diffusion_model_that_is_streamed_is_saved_as_without_us(
    comfy: ComfyUI, host: str, tmp_path: Path
) -> None:
    comfy.sim.cap = BIG
    file = tmp_path / "model.safetensors"
    wired = comfy_models.sd3(comfy)
    save_file({name: t.clone() for name, t in wired.model.state_dict().items()}, file)
    generator = torch.Generator().manual_seed(3)
    patches = {
        name: (torch.randn(weight.shape, generator=generator) * 0.05,)
        for name, weight in wired.model_state_dict().items()
        if name.endswith("qkv.weight")
    }
    found = []
    for number in range(2):
        value = place("model", wired, host=host, files=[file]).value if number else wired
        clone = value.clone()
        assert set(clone.add_patches(patches)) == set(patches)
        found.append(save(clone, tmp_path / str(number), "ModelSave"))
        end_node(comfy)
        comfy.mm.unload_all_models()
        del clone
    check_equal(*found)
