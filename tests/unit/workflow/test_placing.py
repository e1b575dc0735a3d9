"""Placing in workflows that people have: what goes where, and what is said of the rest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from offload_runtime.errors import WorkflowError
from offload_runtime.workflow import (
    PLACERS,
    LeftOut,
    box_of,
    of_object_info,
    place,
    remove,
)

ROOT = Path(__file__).resolve().parents[3]
FLUX = json.loads(Path(__file__).with_name("flux_lora.json").read_text(encoding="utf-8"))
POLICY = "version: 1\ncomponents:\n  text_encoder: layerwise\n"
LOADER, LOAD = "LayerwiseOffload_Loader", "LayerwiseOffload_LoadPolicy"
OTHER = "LayerwiseOffload_OtherModels"
PLACEMENTS = {kind: len(sockets) for kind, sockets in PLACERS.items()}
"""Where the output `placements` of each of our loaders is: behind all others."""


def node(kind: str, title: str = "", **inputs: Any) -> dict[str, Any]:
    return {"class_type": kind, "inputs": inputs, "_meta": {"title": title or kind}}


CHECKPOINT = {
    "1": node("CheckpointLoaderSimple", ckpt_name="sd15.safetensors"),
    "2": node("LoraLoader", lora_name="style.safetensors", model=["1", 0], clip=["1", 1]),
    "3": node("CLIPSetLastLayer", clip=["2", 1], stop_at_clip_layer=-2),
    "4": node("CLIPTextEncode", clip=["3", 0], text="a lighthouse"),
    "5": node("KSampler", model=["2", 0], positive=["4", 0], negative=["4", 0]),
    "6": node("VAEDecode", samples=["5", 0], vae=["1", 2]),
    "7": node("SaveImage", images=["6", 0]),
}


def test_a_prompt_is_placed_in_front_of_all_that_changes_its_models() -> None:
    done = place(CHECKPOINT, POLICY)
    assert (done.loaders, done.sources, done.left_out) == (1, 3, ())
    made = done.document
    new = {name: made[name] for name in made if name not in CHECKPOINT}
    assert {name: (one["class_type"], one["inputs"]) for name, one in new.items()} == {
        "layerwise_offload_1": (LOAD, {"file": "auto", "text": POLICY}),
        "layerwise_offload_2": (
            LOADER,
            {"model": ["1", 0], "clip": ["1", 1], "vae": ["1", 2], "policy": ["layerwise_offload_1", 0]},
        ),
    }
    assert made["2"]["inputs"] == {
        "lora_name": "style.safetensors",
        "model": ["layerwise_offload_2", 0],
        "clip": ["layerwise_offload_2", 1],
    }
    assert made["6"]["inputs"]["vae"] == ["layerwise_offload_2", 2]
    assert [made[name] for name in "13457"] == [CHECKPOINT[name] for name in "13457"]
    assert remove(made) == (CHECKPOINT, 2)


def test_without_a_policy_no_policy_node_is_made() -> None:
    made = place(CHECKPOINT).document
    assert set(made) - set(CHECKPOINT) == {"layerwise_offload_1"}
    assert "policy" not in made["layerwise_offload_1"]["inputs"]


def test_a_second_model_goes_through_a_second_loader_behind_the_first() -> None:
    experts = {
        "1": node("UNETLoader", unet_name="high.safetensors"),
        "2": node("UNETLoader", unet_name="low.safetensors"),
        "3": node("VAELoader", vae_name="vae.safetensors"),
        "4": node("KSamplerAdvanced", model=["1", 0]),
        "5": node("KSamplerAdvanced", model=["2", 0], latent_image=["4", 0]),
        "6": node("VAEDecode", samples=["5", 0], vae=["3", 0]),
    }
    done = place(experts)
    assert (done.loaders, done.sources) == (2, 3)
    assert done.document["layerwise_offload_1"]["inputs"] == {"model": ["1", 0], "vae": ["3", 0]}
    assert done.document["layerwise_offload_2"]["inputs"] == {
        "model": ["2", 0],
        "placements": ["layerwise_offload_1", PLACEMENTS[LOADER]],
    }


def test_what_else_is_loaded_goes_through_the_loader_of_other_models_behind_the_loader() -> None:
    prompt = {
        "1": node("ControlNetLoader", control_net_name="depth.safetensors"),
        "2": node("SetUnionControlNetType", control_net=["1", 0], type="depth"),
        "3": node("ControlNetLoader", control_net_name="pose.safetensors"),
        "4": node("CheckpointLoaderSimple", ckpt_name="sd15.safetensors"),
        "5": node("ControlNetApplyAdvanced", control_net=["2", 0], vae=["4", 2]),
        "6": node("ControlNetApplyAdvanced", positive=["5", 0], control_net=["3", 0]),
        "7": node("KSampler", model=["4", 0], positive=["6", 0]),
        "8": node("UpscaleModelLoader", model_name="x4.pth"),
        "9": node("ImageUpscaleWithModel", upscale_model=["8", 0], image=["7", 0]),
    }
    done = place(prompt, POLICY)
    assert (done.loaders, done.sources, done.left_out) == (3, 5, ())
    made = done.document
    asked = {"policy": ["layerwise_offload_1", 0]}
    new = {name: (made[name]["class_type"], made[name]["inputs"]) for name in made if name not in prompt}
    del new["layerwise_offload_1"]
    first, second = (
        [f"layerwise_offload_{number}", PLACEMENTS[kind]] for number, kind in ((2, LOADER), (3, OTHER))
    )
    assert new == {
        "layerwise_offload_2": (LOADER, {"model": ["4", 0], "vae": ["4", 2], **asked}),
        "layerwise_offload_3": (
            OTHER,
            {"control_net": ["1", 0], "upscale_model": ["8", 0], **asked, "placements": first},
        ),
        "layerwise_offload_4": (OTHER, {"control_net": ["3", 0], **asked, "placements": second}),
    }
    names = list(PLACERS[OTHER])
    assert made["2"]["inputs"]["control_net"] == ["layerwise_offload_3", names.index("control_net")]
    assert made["6"]["inputs"]["control_net"] == ["layerwise_offload_4", names.index("control_net")]
    assert made["9"]["inputs"]["upscale_model"] == ["layerwise_offload_3", names.index("upscale_model")]
    assert place(made, POLICY).document == made
    assert remove(made) == (prompt, 4)


def test_another_model_follows_the_loader_that_is_there() -> None:
    prompt = {
        "1": node("CLIPLoader", clip_name="t5.safetensors"),
        "2": node(LOADER, clip=["1", 0]),
        "3": node("CLIPTextEncode", clip=["2", 1]),
        "4": node("StyleModelLoader", style_model_name="redux.safetensors"),
        "5": node("StyleModelApply", conditioning=["3", 0], style_model=["4", 0]),
    }
    made = place(prompt).document
    assert made["layerwise_offload_1"]["class_type"] == OTHER
    assert made["layerwise_offload_1"]["inputs"] == {
        "style_model": ["4", 0],
        "placements": ["2", PLACEMENTS[LOADER]],
    }
    assert remove(made) == (prompt, 1)


def test_what_is_loaded_with_a_placed_model_comes_in_a_later_loader() -> None:
    """One Loader for both would wait for itself."""
    types = of_object_info(
        {
            "UNETLoader": {"input": {"required": {"unet_name": [["a"]]}}, "output": ["MODEL"]},
            "VAEOfModel": {"input": {"required": {"model": ["MODEL"]}}, "output": ["VAE"]},
            "Decode": {"input": {"required": {"vae": ["VAE"]}}, "output": [], "output_node": True},
        }
    )
    prompt = {
        "1": node("VAEOfModel", model=["2", 0]),
        "2": node("UNETLoader", unet_name="a"),
        "3": node("Decode", vae=["1", 0]),
    }
    done = place(prompt, None, types)
    assert done.document["layerwise_offload_1"]["inputs"] == {"model": ["2", 0]}
    assert done.document["layerwise_offload_2"]["inputs"] == {
        "vae": ["1", 0],
        "placements": ["layerwise_offload_1", PLACEMENTS[LOADER]],
    }


def test_a_model_that_already_goes_through_a_loader_is_left_alone_and_the_rest_follows_it() -> None:
    prompt = {
        "1": node("CLIPLoader", clip_name="t5.safetensors"),
        "2": node("VAELoader", vae_name="vae.safetensors"),
        "3": node(LOADER, clip=["1", 0]),
        "4": node("CLIPTextEncode", clip=["3", 1]),
        "5": node("VAEDecode", samples=["4", 0], vae=["2", 0]),
    }
    made = place(prompt, POLICY).document
    assert made["4"] == prompt["4"]
    assert made["3"] == prompt["3"]
    assert made["layerwise_offload_2"]["inputs"]["placements"] == ["3", PLACEMENTS[LOADER]]
    assert remove(made) == (prompt, 2)


def test_what_cannot_be_placed_is_named_with_the_reason() -> None:
    prompt = {
        "1": node("UnetLoaderGGUF", unet_name="flux-Q4.gguf"),
        "2": node("LoraLoaderModelOnly", lora_name="style.safetensors", model=["1", 0]),
        "3": node("LoraLoaderModelOnly", lora_name="more.safetensors", model=["2", 0]),
        "4": node("IPAdapterModelLoader", ipadapter_file="ip-adapter.safetensors"),
        "5": node("IPAdapter", ipadapter=["4", 0]),
        "6": node("KSampler", model=["3", 0], positive=["5", 0]),
    }
    done = place(prompt, POLICY)
    assert done.document == prompt
    assert done.left_out == (
        LeftOut(None, "1", "UnetLoaderGGUF", "unknown"),
        LeftOut(None, "4", "IPAdapterModelLoader", "unknown"),
    )
    gguf = {
        "IPAdapterModelLoader": {"input": {"required": {}}, "output": ["IPADAPTER"]},
        "UnetLoaderGGUF": {"input": {"required": {"unet_name": [["flux-Q4.gguf"]]}}, "output": ["MODEL"]},
        "LoraLoaderModelOnly": {"input": {"required": {"model": ["MODEL", {}]}}, "output": ["MODEL"]},
        "KSampler": {"input": {"required": {"model": ["MODEL", {}]}}, "output": ["LATENT"]},
    }
    assert place(prompt, None, of_object_info(gguf)).sources == 0, "no node of it runs for its own sake"
    gguf["KSampler"]["output_node"] = True
    known = place(prompt, None, of_object_info(gguf))
    assert known.sources == 1
    assert known.left_out == (LeftOut(None, "4", "IPAdapterModelLoader", "type", "IPADAPTER"),)
    assert known.document["2"]["inputs"]["model"] == ["layerwise_offload_1", 0]


def test_a_workflow_file_is_placed_and_stays_readable() -> None:
    done = place(FLUX, POLICY)
    assert (done.loaders, done.sources, done.left_out) == (1, 3, ())
    load, loader = done.document["nodes"][-2:]
    assert (load["type"], load["widgets_values"]) == (LOAD, ["auto", POLICY])
    links = {link[0]: link for link in done.document["links"]}
    came = {one["name"]: links[one["link"]][1] for one in loader["inputs"] if one["link"] is not None}
    assert came == {"model": 1, "clip": 2, "vae": 3, "policy": load["id"]}
    went = {out["name"]: [links[one][3] for one in out["links"] or []] for out in loader["outputs"]}
    assert went == {"MODEL": [4], "CLIP": [4], "VAE": [9], "CLIP_VISION": [], "placements": []}
    boxes = [box_of(one) for one in done.document["nodes"]]
    assert not any(a.covers(b) for i, a in enumerate(boxes[-2:], len(boxes) - 2) for b in boxes[:i])
    assert (done.document["last_node_id"], done.document["last_link_id"]) == (loader["id"], max(links))


@pytest.mark.parametrize(("mode", "word"), [(2, "muted"), (4, "bypassed")])
def test_a_loader_that_is_off_is_named(mode: int, word: str) -> None:
    workflow = json.loads(json.dumps(FLUX))
    workflow["nodes"][2]["mode"] = mode
    done = place(workflow, POLICY)
    assert done.sources == 2
    assert done.left_out == (LeftOut(None, 3, "VAELoader", word),)


def test_what_only_feeds_nodes_that_are_off_is_not_loaded_for_our_sake() -> None:
    workflow = json.loads(json.dumps(FLUX))
    loader, decode = json.loads(json.dumps([workflow["nodes"][2], workflow["nodes"][8]]))
    loader |= {"id": 20, "outputs": [{"name": "VAE", "type": "VAE", "links": [20]}]}
    decode |= {"id": 21, "mode": 2, "outputs": []}
    decode["inputs"] = [{"name": "vae", "type": "VAE", "link": 20}]
    workflow["nodes"] += [loader, decode]
    workflow["links"].append([20, 20, 0, 21, 0, "VAE"])
    done = place(workflow, POLICY)
    assert (done.loaders, done.sources) == (1, 3)
    assert done.left_out == (LeftOut(None, 20, "VAELoader", "unused"),)


@pytest.mark.parametrize(
    "file", sorted((ROOT / "example_workflows").glob("*.json")), ids=lambda file: file.stem
)
def test_our_own_workflows_are_placed_already(file: Path) -> None:
    """All but what is placed only if somebody asks for it."""
    workflow = json.loads(file.read_text(encoding="utf-8"))
    done = place(workflow)
    new = done.document["nodes"][len(workflow["nodes"]) :]
    assert {one["type"] for one in new} <= {OTHER}
    if not new:
        assert done.document == workflow
    assert remove(workflow) == (workflow, 0)


@pytest.mark.parametrize("kind", PLACERS)
def test_the_tables_of_sockets_are_those_of_the_nodes(kind: str) -> None:
    """Links count outputs by place."""
    fixture = ROOT / "tests" / "server" / "fixtures" / "node_schemas.json"
    schema = json.loads(fixture.read_text(encoding="utf-8"))[kind]
    outputs = [(name.lower(), kind) for name, kind in schema["outputs"]]
    assert outputs == [*PLACERS[kind].items(), ("placements", "LAYERWISE_PLACEMENTS")]
    takes = {name: kind for name, kind, _ in schema["optional"]}
    assert takes == {**PLACERS[kind], "policy": "LAYERWISE_POLICY", "placements": "LAYERWISE_PLACEMENTS"}


@pytest.mark.parametrize(
    "document",
    [
        *([], {}, "text", 3, None, {"a": 1}, {"1": {"class_type": 3, "inputs": {}}}, {"nodes": [3]}),
        {"nodes": [{"id": 1}]},
        {"nodes": [], "links": [[1]]},
        {"nodes": [], "definitions": {"subgraphs": [{}]}},
    ],
)
def test_nonsense_is_refused_in_a_sentence(document: Any) -> None:
    with pytest.raises(WorkflowError, match="it is n"):
        place(document, POLICY)
    with pytest.raises(WorkflowError, match="it is n"):
        remove(document)
