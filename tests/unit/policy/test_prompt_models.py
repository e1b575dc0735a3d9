"""Which models a prompt uses, and which of them run in turn."""

from __future__ import annotations

from typing import Any

from offload_runtime.policy import ModelSource, NodeKind, PromptModels

KINDS = {
    "UNETLoader": NodeKind(("MODEL",)),
    "DualCLIPLoader": NodeKind(("CLIP",)),
    "VAELoader": NodeKind(("VAE",)),
    "CheckpointLoaderSimple": NodeKind(("MODEL", "CLIP", "VAE")),
    "LoraLoader": NodeKind(("MODEL", "CLIP")),
    "ModelMergeSimple": NodeKind(("MODEL",)),
    "ControlNetLoader": NodeKind(("CONTROL_NET",)),
    "ControlNetApply": NodeKind(("CONDITIONING",)),
    "CLIPTextEncode": NodeKind(("CONDITIONING",)),
    "CFGGuider": NodeKind(("GUIDER",)),
    "DualModelGuider": NodeKind(("GUIDER",)),
    "KSampler": NodeKind(("LATENT",)),
    "VAEDecode": NodeKind(("IMAGE",)),
    "SaveImage": NodeKind((), shows=True),
    "Switch": NodeKind(("*",)),
    "Preset": NodeKind(("MODEL",)),
    "Loader": NodeKind(("MODEL", "CLIP", "VAE", "CLIP_VISION", "LAYERWISE_PLACEMENTS")),
    "Report": NodeKind((), shows=True),
}
Prompt = dict[str, dict[str, Any]]


def node(kind: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": kind, "inputs": inputs}


def models(prompt: Prompt, **more: Any) -> PromptModels:
    return PromptModels(prompt, KINDS, **more)


def names(sources: Any) -> set[tuple[str, str]]:
    return {(source.node, source.type) for source in sources}


TWO_EXPERTS: Prompt = {
    "high": node("UNETLoader"),
    "low": node("UNETLoader"),
    "lora": node("LoraLoader", model=["low", 0]),
    "clip": node("DualCLIPLoader"),
    "text": node("CLIPTextEncode", clip=["clip", 0]),
    "first": node("KSampler", model=["high", 0], positive=["text", 0]),
    "second": node("KSampler", model=["lora", 0], positive=["text", 0], latent_image=["first", 0]),
    "vae": node("VAELoader"),
    "decode": node("VAEDecode", samples=["second", 0], vae=["vae", 0]),
    "save": node("SaveImage", images=["decode", 0]),
}


def test_two_samplers_in_a_row_run_their_models_in_turn() -> None:
    found = models(TWO_EXPERTS)
    assert names(found.used()) == {("high", "MODEL"), ("low", "MODEL"), ("clip", "CLIP"), ("vae", "VAE")}
    assert found.together() == frozenset()


def test_a_guider_that_takes_two_models_runs_them_together() -> None:
    prompt = TWO_EXPERTS | {
        "guider": node("DualModelGuider", model=["high", 0], model_negative=["lora", 0]),
        "first": node("KSampler", guider=["guider", 0]),
        "second": node("KSampler", latent_image=["first", 0]),
    }
    assert names(models(prompt).together()) == {("high", "MODEL"), ("low", "MODEL")}


def test_one_model_by_two_inputs_is_one_model() -> None:
    prompt = TWO_EXPERTS | {
        "guider": node("DualModelGuider", model=["low", 0], model_negative=["lora", 0]),
        "first": node("KSampler", guider=["guider", 0]),
    }
    assert models(prompt).together() == frozenset()


def test_models_that_are_merged_are_one() -> None:
    prompt = TWO_EXPERTS | {
        "merge": node("ModelMergeSimple", model1=["high", 0], model2=["low", 0]),
        "first": node("KSampler", model=["merge", 0]),
    }
    assert models(prompt).together() == frozenset()


def test_what_no_output_node_reaches_is_not_used() -> None:
    prompt = TWO_EXPERTS | {
        "spare": node("UNETLoader"),
        "nobody": node("KSampler", model=["spare", 0]),
    }
    assert ("spare", "MODEL") not in names(models(prompt).used())
    assert "nobody" not in models(prompt).running


def test_an_output_that_nobody_uses_is_not_counted() -> None:
    prompt = {
        "ckpt": node("CheckpointLoaderSimple"),
        "lora": node("LoraLoader", model=["ckpt", 0], clip=["ckpt", 1]),
        "sample": node("KSampler", model=["lora", 0]),
        "save": node("SaveImage", images=["sample", 0]),
    }
    assert names(models(prompt).used()) == {("ckpt", "MODEL")}


def test_what_comes_through_a_loader_is_found_behind_all_that_hands_on() -> None:
    prompt = {
        "ckpt": node("CheckpointLoaderSimple"),
        "lora": node("LoraLoader", model=["ckpt", 0], clip=["ckpt", 1]),
        "switch": node("Switch", a=["lora", 1], choice="a"),
        "ours": node("Loader", clip=["switch", 0]),
        "text": node("CLIPTextEncode", clip=["ours", 1]),
        "sample": node("KSampler", model=["lora", 0], positive=["text", 0]),
        "save": node("SaveImage", images=["sample", 0]),
    }
    found = models(prompt)
    assert found.taken_by("ours") == {ModelSource("ckpt", 1, "CLIP")}
    assert names(found.used()) == {("ckpt", "MODEL"), ("ckpt", "CLIP")}


def test_loaders_in_a_row_know_each_other() -> None:
    prompt = {
        "a": node("Loader", clip=["clip", 0]),
        "b": node("Loader", model=["unet", 0], placements=["a", 4]),
        "c": node("Loader", placements=["b", 4]),
        "report": node("Report", placements=["c", 4]),
    }
    assert models(prompt).placing_before("b") == {"a", "b"}


def test_a_node_that_is_expanded_hands_on_what_came_of_it() -> None:
    prompt = {
        "preset": node("Preset"),
        "inner": node("UNETLoader"),
        "sample": node("KSampler", model=["preset", 0]),
        "save": node("SaveImage", images=["sample", 0]),
    }
    assert names(models(prompt, parents={"inner": "preset"}).used()) == {("inner", "MODEL")}


def test_links_in_a_circle_end() -> None:
    prompt = {
        "a": node("Switch", value=["b", 0]),
        "b": node("Switch", value=["a", 0]),
        "sample": node("KSampler", model=["a", 0]),
        "save": node("SaveImage", images=["sample", 0]),
    }
    assert models(prompt).used() == []


def test_a_class_that_nobody_knows_hands_on_what_it_takes() -> None:
    prompt = TWO_EXPERTS | {"odd": node("SomebodysPatch", model=["high", 0])}
    prompt["first"] = node("KSampler", model=["odd", 0])
    assert ("high", "MODEL") in names(models(prompt).used())
