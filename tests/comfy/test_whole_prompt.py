"""What a prompt uses beside what comes through our nodes, with ComfyUI's own nodes and files in its folders."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import comfy.model_management as mm
import models
import pytest
from graphs import node as ours
from graphs import register

from offload_runtime.adapter import Placements, Prompt, apply_policy, around, candidate_files
from offload_runtime.adapter.weight_files import remember
from offload_runtime.adapter.whole_prompt import bystanders_now
from offload_runtime.policy import BystanderFacts, Policy

GB = 10**9
FOLDERS = ("checkpoints", "diffusion_models", "text_encoders", "vae", "loras", "controlnet", "style_models")


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """ComfyUI's folders, with files of real sizes that are holes: only headers are ever read."""
    import folder_paths

    register()
    for name in FOLDERS:
        (tmp_path / name).mkdir()
        known = ([str(tmp_path / name)], {".safetensors", ".ckpt"})
        monkeypatch.setitem(folder_paths.folder_names_and_paths, name, known)
    return tmp_path


def write(path: Path, **sizes: float) -> Path:
    """A file with some weights of so many gigabytes."""
    entries, at = {}, 0
    for name, size in sizes.items():
        count = int(size * GB)
        entries[name] = {"dtype": "U8", "shape": [count], "data_offsets": [at, at + count]}
        at += count
    header = json.dumps(entries).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    os.truncate(path, 8 + len(header) + at)
    return path


def node(kind: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": kind, "inputs": inputs}


def to_the_end(model: Any, clip: Any, vae: Any) -> dict[str, Any]:
    """Return the rest of a workflow that uses a model, a text encoder and a VAE."""
    return {
        "text": node("CLIPTextEncode", text="a", clip=clip),
        "sample": node("KSampler", model=model, positive=["text", 0], negative=["text", 0]),
        "decode": node("VAEDecode", samples=["sample", 0], vae=vae),
        "save": node("SaveImage", images=["decode", 0]),
    }


def found(prompt: dict[str, Any], node_id: str = "ours") -> dict[str, BystanderFacts]:
    return {facts.name: facts for facts in bystanders_now(around(Prompt(prompt), node_id), [])}


FLUX = {
    "unet": node("UNETLoader", unet_name="flux.safetensors", weight_dtype="default"),
    "clip": node("DualCLIPLoader", clip_name1="clip_l.safetensors", clip_name2="t5.safetensors", type="flux"),
    "vae": node("VAELoader", vae_name="ae.safetensors"),
}


@pytest.fixture
def flux(folders: Path) -> None:
    write(folders / "diffusion_models" / "flux.safetensors", w=12)
    write(folders / "text_encoders" / "clip_l.safetensors", w=0.25)
    write(folders / "text_encoders" / "t5.safetensors", w=9.5)
    write(folders / "vae" / "ae.safetensors", w=0.3)


@pytest.mark.usefixtures("flux")
def test_every_model_of_the_prompt_is_found_and_sized() -> None:
    prompt = (
        FLUX | {"ours": ours("Loader", vae=["vae", 0])} | to_the_end(["unet", 0], ["clip", 0], ["ours", 2])
    )
    others = found(prompt)
    assert set(others) == {"flux.safetensors", "clip_l.safetensors + t5.safetensors"}
    flux = others["flux.safetensors"]
    assert (flux.bytes, flux.group, flux.in_turn, flux.on_host) == (12 * GB, "dit", True, False)
    encoder = others["clip_l.safetensors + t5.safetensors"]
    assert (encoder.bytes, encoder.group) == (9.75 * GB, "text_encoder")


@pytest.mark.usefixtures("flux")
def test_what_comes_through_a_loader_is_none_of_it() -> None:
    given = {"model": ["unet", 0], "clip": ["clip", 0], "vae": ["vae", 0]}
    prompt = FLUX | {"ours": ours("Loader", **given)} | to_the_end(["ours", 0], ["ours", 1], ["ours", 2])
    assert found(prompt) == {}
    again = node("UNETLoader", unet_name="flux.safetensors", weight_dtype="default")
    prompt = prompt | {"again": again} | to_the_end(["again", 0], ["ours", 1], ["ours", 2])
    assert found(prompt) == {}, "a node like the one in front of ours: ComfyUI loads it once"


@pytest.mark.usefixtures("flux")
def test_loaders_in_a_row_count_what_the_earlier_ones_have_placed_as_theirs() -> None:
    prompt = FLUX | {
        "first": ours("Loader", clip=["clip", 0]),
        "ours": ours("Loader", model=["unet", 0], placements=["first", 4]),
        **to_the_end(["ours", 0], ["first", 1], ["vae", 0]),
    }
    assert set(found(prompt)) == {"ae.safetensors"}
    assert set(found(prompt, "first")) == {"flux.safetensors", "ae.safetensors"}


def test_a_checkpoint_counts_once_and_without_what_came_through(folders: Path) -> None:
    weights = {"model.diffusion_model.a": 5.1, "conditioner.b": 1.6, "first_stage_model.c": 0.2}
    write(folders / "checkpoints" / "xl.safetensors", **weights)
    prompt = {
        "ckpt": node("CheckpointLoaderSimple", ckpt_name="xl.safetensors"),
        "ours": ours("Loader", clip=["ckpt", 1]),
        **to_the_end(["ckpt", 0], ["ours", 1], ["ckpt", 2]),
    }
    others = found(prompt)
    assert {name: facts.bytes for name, facts in others.items()} == {
        "the MODEL of xl.safetensors": 5.1 * GB,
        "the VAE of xl.safetensors": 0.2 * GB,
    }
    del prompt["decode"], prompt["save"]
    prompt["save"] = node("SaveLatent", samples=["sample", 0])
    assert set(found(prompt)) == {"the MODEL of xl.safetensors"}, "nobody uses its VAE"


def test_of_a_file_that_does_not_tell_what_came_through_is_taken_off(folders: Path) -> None:
    path = folders / "checkpoints" / "old.ckpt"
    path.write_bytes(b"")
    os.truncate(path, 2 * GB)
    prompt = {
        "ckpt": node("CheckpointLoaderSimple", ckpt_name="old.ckpt"),
        "ours": ours("Loader", clip=["ckpt", 1]),
        **to_the_end(["ckpt", 0], ["ours", 1], ["ckpt", 2]),
    }
    clip = models.clip()
    candidate_files(Prompt(prompt), "ours", "clip", clip)
    whole = around(Prompt(prompt), "ours")
    (rest,) = bystanders_now(whole, [clip.patcher.model])
    assert rest.name == "old.ckpt"
    assert rest.bytes == 2 * GB - sum(p.nbytes for p in clip.patcher.model.parameters())


@pytest.mark.usefixtures("flux")
def test_loras_and_style_models_stay_on_the_host_and_a_controlnet_does_not(folders: Path) -> None:
    write(folders / "loras" / "style.safetensors", w=1)
    write(folders / "controlnet" / "canny.safetensors", w=3)
    write(folders / "style_models" / "redux.safetensors", w=0.1)
    prompt = FLUX | {
        "ours": ours("Loader", clip=["clip", 0], model=["unet", 0], vae=["vae", 0]),
        "lora": node(
            "LoraLoaderModelOnly", model=["ours", 0], lora_name="style.safetensors", strength_model=1.0
        ),
        "control": node("ControlNetLoader", control_net_name="canny.safetensors"),
        "redux": node("StyleModelLoader", style_model_name="redux.safetensors"),
        **to_the_end(["lora", 0], ["ours", 1], ["ours", 2]),
        "styled": node("StyleModelApply", conditioning=["text", 0], style_model=["redux", 0]),
        "applied": node("ControlNetApply", conditioning=["styled", 0], control_net=["control", 0]),
    }
    prompt["sample"]["inputs"]["positive"] = ["applied", 0]
    others = found(prompt)
    on_host = {name: facts.on_host for name, facts in others.items()}
    assert on_host == {"style.safetensors": True, "canny.safetensors": False, "redux.safetensors": True}
    assert not others["canny.safetensors"].in_turn


@pytest.mark.usefixtures("flux")
def test_two_experts_run_in_turn(folders: Path) -> None:
    write(folders / "diffusion_models" / "low.safetensors", w=14)
    prompt = FLUX | {
        "low": node("UNETLoader", unet_name="low.safetensors", weight_dtype="default"),
        "ours": ours("Loader", clip=["clip", 0], vae=["vae", 0]),
        **to_the_end(["low", 0], ["ours", 1], ["ours", 2]),
        "first": node("KSampler", model=["unet", 0], positive=["text", 0], negative=["text", 0]),
    }
    prompt["sample"]["inputs"]["latent_image"] = ["first", 0]
    assert {name: facts.in_turn for name, facts in found(prompt).items()} == {
        "flux.safetensors": True,
        "low.safetensors": True,
    }


@pytest.mark.usefixtures("flux")
def test_a_loaded_model_says_how_large_it_is_and_counts_once() -> None:
    """ComfyUI may have converted what the file holds."""
    prompt = (
        FLUX | {"ours": ours("Loader", vae=["vae", 0])} | to_the_end(["unet", 0], ["clip", 0], ["ours", 2])
    )
    clip = models.clip()
    path = next(iter(around(Prompt(prompt), "ours").others[0].files))
    mm.load_models_gpu([clip.patcher])
    remember(clip.patcher.model, [path])
    live = sum(p.nbytes for p in clip.patcher.model.parameters())
    try:
        sizes = {facts.name: facts.bytes for facts in found(prompt).values()}
        assert sizes == {"flux.safetensors": 12 * GB, "clip_l.safetensors + t5.safetensors": live}
        assert len(bystanders_now(around(Prompt(prompt), "ours"), [clip.patcher.model])) == 2
    finally:
        mm.unload_all_models()


def test_a_model_that_no_file_is_named_for_is_told_and_not_guessed() -> None:
    prompt = {
        "pixels": node("VAELoader", vae_name="taesd"),
        "ours": ours("Loader"),
        **to_the_end(["ours", 0], ["ours", 1], ["pixels", 0]),
    }
    (other,) = found(prompt).values()
    assert (other.name, other.bytes) == ("the VAE of node pixels (VAELoader)", 0)


def test_one_text_encoder_through_two_loaders_is_one_component() -> None:
    clip = models.clip()
    placed, first = apply_policy(Policy(), {"clip": clip}, {}, Placements())
    for value in (clip, placed["clip"]):
        _, second = apply_policy(Policy(), {"clip": value}, {}, first)
        assert [one.facts.name for one in second.placed] == ["text_encoder"]
