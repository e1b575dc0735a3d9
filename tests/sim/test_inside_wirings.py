"""However a workflow is wired, a new prompt evicts nothing of the diffusion model, in real sizes (no numbers)."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from .comfyui import ComfyUI
from .prompt_change import GB, TextEncoder, Workflow

pytestmark = pytest.mark.usefixtures("_inference_mode")

SOCKETS = ("model", "clip", "vae", "clip_vision", "placements")
OUTPUTS = {
    "UNETLoader": ("MODEL",),
    "CLIPLoader": ("CLIP",),
    "CLIPTextEncode": ("CONDITIONING",),
    "KSampler": ("LATENT",),
    "Save": (),
    "Loader": ("MODEL", "CLIP", "VAE", "CLIP_VISION", "LAYERWISE_PLACEMENTS"),
}
ENCODER, MODEL, CHAIN = ["clip", 0], ["unet", 0], ["first", 4]
WIRINGS: dict[str, dict[str, dict[str, Any]]] = {
    "CLIP only": {"first": {"clip": ENCODER}},
    "CLIP first": {"first": {"clip": ENCODER}, "second": {"model": MODEL, "placements": CHAIN}},
    "model first": {"first": {"model": MODEL}, "second": {"clip": ENCODER, "placements": CHAIN}},
    "two loaders that do not know each other": {"first": {"model": MODEL}, "second": {"clip": ENCODER}},
    "one loader": {"first": {"clip": ENCODER, "model": MODEL}},
}


def node(kind: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": kind, "inputs": inputs}


def prompt(wiring: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return a workflow whose models go through some loaders of ours."""
    placed = {slot: [name, SOCKETS.index(slot)] for name, given in wiring.items() for slot in given}
    return {
        "unet": node("UNETLoader", unet_name="flux.safetensors"),
        "clip": node("CLIPLoader", clip_name="t5xxl.safetensors"),
        **{name: node("Loader", **inputs) for name, inputs in wiring.items()},
        "text": node("CLIPTextEncode", clip=placed.get("clip", ENCODER)),
        "sample": node("KSampler", model=placed.get("model", MODEL), positive=["text", 0]),
        "save": node("Save", images=["sample", 0]),
    }


@pytest.fixture
def files(comfy: ComfyUI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """ComfyUI's folder of models, and the classes of its nodes."""
    import folder_paths

    classes = {
        kind: SimpleNamespace(RETURN_TYPES=types, OUTPUT_NODE=kind == "Save")
        for kind, types in OUTPUTS.items()
    }
    monkeypatch.setitem(sys.modules, "nodes", SimpleNamespace(NODE_CLASS_MAPPINGS=classes))
    here = {kind: ([str(tmp_path)], {".safetensors"}) for kind in ("diffusion_models", "text_encoders")}
    monkeypatch.setattr(folder_paths, "folder_names_and_paths", here)
    return tmp_path


def write(path: Path, size: int) -> None:
    """A file of one weight, which is a hole: only its header is ever read."""
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    os.truncate(path, 8 + len(header) + size)


def bytes_of(patcher: Any) -> int:
    return sum(p.nbytes for p in patcher.model.parameters())


def place(workflow: Workflow, wiring: dict[str, dict[str, Any]]) -> Any:
    """Run the loaders of a wiring, as ComfyUI does; return the placements of all."""
    from offload_runtime.adapter import Placements, Prompt, apply_policy, around
    from offload_runtime.policy import Policy

    graph = Prompt(prompt(wiring))
    placements = Placements()
    rows = []
    for name, inputs in wiring.items():
        objects: dict[str, Any] = {}
        if "clip" in inputs:
            objects["clip"] = TextEncoder(workflow.encoder)
        if "model" in inputs:
            objects["model"] = workflow.diffusion
        before = placements if "placements" in inputs else Placements()
        placed, placements = apply_policy(Policy(), objects, {}, before, around=around(graph, name))
        rows.extend(placements.placed[-len(objects) :])
        if "clip" in placed:
            workflow.encoder = placed["clip"].patcher
        workflow.diffusion = placed.get("model", workflow.diffusion)
    return {one.facts.name: one for one in rows}


@pytest.mark.card(profile="rtx4090", shapes=True, cap=64 * GB)
@pytest.mark.parametrize("dynamic", [False, True], ids=["legacy", "dynamic"])
@pytest.mark.parametrize("wiring", WIRINGS)
def test_a_new_prompt_costs_little_however_much_is_wired(
    comfy: ComfyUI, files: Path, wiring: str, *, dynamic: bool
) -> None:
    if dynamic and not comfy.has_dynamic:
        pytest.skip("This ComfyUI has no dynamic VRAM (it came after 0.3.75).")
    if dynamic:
        comfy.enable_dynamic()
    resident = _more_than_a_step(Workflow(comfy))
    comfy.mm.unload_all_models()
    comfy.sim.cap = 12 * GB
    workflow = Workflow(comfy)
    write(files / "flux.safetensors", bytes_of(workflow.diffusion))
    write(files / "t5xxl.safetensors", bytes_of(workflow.encoder))
    placed = place(workflow, WIRINGS[wiring])
    costs = _more_than_a_step(workflow) - resident
    print(f"{wiring}: {costs / 1000:.3f} s")  # noqa: T201
    assert costs <= 370
    encoder = placed["text_encoder"]
    assert str(encoder.decision.placement) == "layerwise"
    if wiring in ("CLIP only", "CLIP first", "two loaders that do not know each other"):
        assert "beside flux.safetensors (11.18 GB, not through this Loader)" in encoder.decision.reason
    comfy.mm.unload_all_models()


def _more_than_a_step(workflow: Workflow) -> float:
    """Return the milliseconds that the third new prompt takes, more than a step does then."""
    for _ in range(3):
        took = workflow.prompt()
        took -= workflow.steady_step()
    return took
