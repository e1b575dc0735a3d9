"""Run a shipped workflow with the demo models in place of its files, which nobody can download here.

The graph stays as it is: only the loaders' files are replaced (and a loader of several text encoders by one of
CLIP-L), and the picture is as small as it can be.
"""

from __future__ import annotations

import copy
from typing import Any

from scripts.comfy_client import Prompt

CLIP = {"class_type": "CLIPLoader", "clip_name": "demo_clip_l.safetensors", "type": "stable_diffusion"}
MODEL = {"class_type": "UNETLoader", "unet_name": "demo_sd3_tiny.safetensors", "weight_dtype": "default"}
VAE = {"class_type": "VAELoader", "vae_name": "demo_vae_16ch.safetensors"}
VIDEO = {"class_type": "CheckpointLoaderSimple", "ckpt_name": "demo_ltxv_tiny.safetensors"}
FILES = {
    "UNETLoader": MODEL,
    "CLIPLoader": CLIP,
    "DualCLIPLoader": CLIP,
    "TripleCLIPLoader": CLIP,
    "VAELoader": VAE,
    "CLIPVisionLoader": {"class_type": "CLIPVisionLoader", "clip_name": "demo_clip_vit_l.safetensors"},
    "ControlNetLoader": {
        "class_type": "ControlNetLoader",
        "control_net_name": "demo_sd3_control_tiny.safetensors",
    },
    "StyleModelLoader": {
        "class_type": "StyleModelLoader",
        "style_model_name": "demo_style_adapter.safetensors",
    },
}
OURS = {
    "UNETLoader": "LayerwiseOffload_LoadDiffusionModel",
    "CLIPLoader": "LayerwiseOffload_LoadCLIP",
    "VAELoader": "LayerwiseOffload_LoadVAE",
    "CLIPVisionLoader": "LayerwiseOffload_LoadCLIPVision",
    "CheckpointLoaderSimple": "LayerwiseOffload_LoadCheckpoint",
}
"""ComfyUI's loaders → those of the pack that load the same and place it."""
SMALLEST = {
    "EmptySD3LatentImage": {"width": 64, "height": 64},
    "EmptyLTXVLatentVideo": {"width": 64, "height": 64, "length": 9},
    "KSampler": {"steps": 1},
    "LTXVScheduler": {"steps": 1},
    "SamplerCustom": {"cfg": 1.0},  # one picture at a time: ComfyUI 0.3.75 has no masks for two on a CPU
    "VAEDecodeTiled": {"tile_size": 64, "overlap": 0},
}


def with_stand_ins(prompt: Prompt) -> Prompt:
    """The prompt on demo models."""
    prompt = copy.deepcopy(prompt)
    for node_id, node in list(prompt.items()):
        kind = node["class_type"]
        node["inputs"].update(SMALLEST.get(kind, {}))
        if kind in FILES:
            prompt[node_id] = _loader(FILES[kind])
        elif kind.startswith("LayerwiseOffload_Load") and kind != "LayerwiseOffload_Loader":
            prompt[node_id] = _ours(node)
            if node["inputs"].get("ckpt_name", "").startswith("ltx"):
                _mask_texts(prompt)
        elif kind == "CheckpointLoaderSimple" and node["inputs"]["ckpt_name"].startswith("ltx"):
            prompt[node_id] = _loader(VIDEO)
            _mask_texts(prompt)
        elif kind == "CheckpointLoaderSimple":
            prompt[node_id], prompt[f"{node_id}-vae"] = _loader(MODEL), _loader(VAE)
            _rewire(prompt, [node_id, 2], [f"{node_id}-vae", 0])
    return prompt


def _ours(node: dict[str, Any]) -> dict[str, Any]:
    """A loader of the pack, with the same links, for the file that stands in for its own."""
    cores = {ours: core for core, ours in OURS.items()} | {"LayerwiseOffload_LoadDualCLIP": "CLIPLoader"}
    core = cores[node["class_type"]]
    stands_in = _loader(VIDEO if core == "CheckpointLoaderSimple" else FILES[core])
    links = {name: value for name, value in node["inputs"].items() if isinstance(value, list)}
    return {"class_type": OURS[core], "inputs": {**stands_in["inputs"], **links}}


def _mask_texts(prompt: Prompt) -> None:
    """LTX-Video reads the attention mask that T5-XXL hands on, and CLIP-L has none."""
    texts = [node_id for node_id, node in prompt.items() if node["class_type"] == "CLIPTextEncode"]
    for text in texts:
        _rewire(prompt, [text, 0], [f"{text}-mask", 0])
        inputs = {"conditioning": [text, 0]}
        prompt[f"{text}-mask"] = {"class_type": "StandIns_AttentionMask", "inputs": inputs}


def _loader(described: dict[str, str]) -> dict[str, Any]:
    inputs = {name: value for name, value in described.items() if name != "class_type"}
    return {"class_type": described["class_type"], "inputs": inputs}


def _rewire(prompt: Prompt, before: list[Any], after: list[Any]) -> None:
    for node in prompt.values():
        for name, value in node["inputs"].items():
            if value == before:
                node["inputs"][name] = after
