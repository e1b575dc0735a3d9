"""ComfyUI's nodes that save: the file is the same, byte for byte, whether a model is placed or not."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import folder_paths
import models
import pytest
import torch
from graphs import Graph
from placing import PlacedObject, policy
from safetensors.torch import load as load_bytes
from safetensors.torch import save_file
from test_model_loaders import BF16, FP8, FP16, core, folder, graph, load, lora, written

__all__ = ["folder", "graph"]

Save = Callable[..., None]

SAVED = {
    "clip": ("CLIPSave", "clip"),
    "vae": ("VAESave", "vae"),
    "model": ("ModelSave", "model"),
    "clip_vision": ("", ""),
}


@pytest.fixture
def output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    there = tmp_path / "saved"
    monkeypatch.setattr(folder_paths, "output_directory", str(there))
    return there


def save(output: Path, kind: str, **inputs: Any) -> dict[str, bytes]:
    """Save with one of ComfyUI's nodes; returns the files that it writes, without their numbers, and removes them."""
    from comfy_extras import nodes_model_merging

    with torch.inference_mode():
        getattr(nodes_model_merging, kind)().save(**inputs, filename_prefix="model")
    files = {file.name: file.read_bytes() for file in output.iterdir()}
    for name in files:
        os.remove(output / name)
    assert files
    return files


def differences(one: dict[str, bytes], other: dict[str, bytes]) -> list[str]:
    """Return where files differ; pytest would compare the bytes one by one."""
    found = sorted(one.keys() ^ other.keys())
    for name in one.keys() & other.keys():
        here, there = load_bytes(one[name]), load_bytes(other[name])
        for key in sorted(here.keys() | there.keys()):
            a, b = here.get(key), there.get(key)
            if a is None or b is None or a.dtype != b.dtype or not torch.equal(a, b):
                found.append(f"{name}: {key}: {_said(a)} and {_said(b)}")
        if not found and (_header(one[name]), len(one[name])) != (_header(other[name]), len(other[name])):
            found.append(f"{name}: header")
    return found


def _header(file: bytes) -> Any:
    """Return what a header says; safetensors writes its texts in any order."""
    return json.loads(file[8 : 8 + int.from_bytes(file[:8], "little")])


def _said(tensor: torch.Tensor | None) -> str:
    return "nothing" if tensor is None else f"{tensor.dtype} {tuple(tensor.shape)}"


LOADED = [
    *(
        ("LoadCLIP", "CLIPLoader", {"clip_name": f"t5_{d}.safetensors", "type": "stable_audio"}, "clip")
        for d in (FP8, FP16, BF16)
    ),
    *(
        (
            "LoadDiffusionModel",
            "UNETLoader",
            {"unet_name": f"sd3_{d}.safetensors", "weight_dtype": "default"},
            "model",
        )
        for d in (FP8, FP16, BF16)
    ),
    ("LoadVAE", "VAELoader", {"vae_name": "vae.safetensors"}, "vae"),
]


@pytest.mark.parametrize(("ours", "cores", "inputs", "slot"), LOADED)
@pytest.mark.parametrize("wishes", [None, {}], ids=["layerwise", "auto"])
@pytest.mark.parametrize("patched", [False, True])
def test_what_our_loaders_loaded_is_saved_as_what_comfyui_s_loaded(
    graph: Graph,
    output: Path,
    ours: str,
    cores: str,
    inputs: dict[str, str],
    slot: str,
    wishes: dict[str, str] | None,
    patched: bool,
) -> None:
    if patched and slot == "vae":
        pytest.skip("nothing patches a VAE")
    files = []
    for value in (core(cores, **inputs), load(graph, ours, wishes, **inputs)[0]):
        if patched:
            value = value.clone()
            patches = lora(models.patcher_of(value).model)
            value.add_patches({key: ("diff", patch) for key, patch in patches.items()}, 0.5)
        files.append(save(output, SAVED[slot][0], **{SAVED[slot][1]: value}))
        del value
    assert differences(*files) == []


@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("slot", ["clip", "model", "vae"])
@pytest.mark.parametrize("stored", [None, FP8, FP16])
def test_what_is_placed_after_it_was_loaded_is_saved_as_without_us(
    output: Path, tmp_path: Path, slot: str, used: bool, stored: torch.dtype | None
) -> None:
    """As it is in the file, or converted from it."""
    family = models.FAMILIES[slot]
    value = family.make()
    if slot == "clip":
        value.tokenizer = SimpleNamespace(state_dict=dict)
    model = models.patcher_of(value).model
    with torch.no_grad():
        for parameter in model.parameters():
            if stored is not None:
                parameter.copy_(parameter.to(stored))
    expected = save(output, SAVED[slot][0], **{SAVED[slot][1]: value})
    kept = {n: p.detach().to(p.dtype if stored is None else stored) for n, p in model.named_parameters()}
    file = tmp_path / "model.safetensors"
    save_file(kept, file)
    placed = PlacedObject(family.slot, value, policy("layerwise"), [file])
    assert placed.row.applied == "layerwise"
    if used:
        family.run(placed.value)
    assert differences(save(output, SAVED[slot][0], **{SAVED[slot][1]: placed.value}), expected) == []
    assert differences(save(output, SAVED[slot][0], **{SAVED[slot][1]: placed.value}), expected) == [], (
        "and once more"
    )


def test_a_checkpoint_is_saved_as_without_us(graph: Graph, output: Path, folder: Path) -> None:
    from graphs import node

    import nodes

    name = written(folder, "demo_ltxv_tiny")
    with torch.inference_mode():
        model, clip, vae = nodes.NODE_CLASS_MAPPINGS["CheckpointLoaderSimple"]().load_checkpoint(name)
    clip = core("CLIPLoader", **LOADED[0][2])
    expected = save(output, "CheckpointSave", model=model, clip=clip, vae=vae)
    placed_clip = load(graph, "LoadCLIP", **LOADED[0][2])[0]
    prompt = {
        "1": node("PlacementPolicy", text_encoder="layerwise", vae="layerwise", diffusion_model="layerwise"),
        "2": node("LoadCheckpoint", ckpt_name=name, policy=["1", 0]),
    }
    prompt |= {str(3 + index): node("Sink", value=["2", index]) for index in range(4)}
    seen = graph.run(prompt)
    ours = {type(value): value for value in seen}
    files = save(output, "CheckpointSave", model=ours[type(model)], clip=placed_clip, vae=ours[type(vae)])
    assert differences(files, expected) == []
