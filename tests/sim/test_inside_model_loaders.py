"""The loaders that place while they load, on a card and with card memory manager: core's bits, a true report."""

from __future__ import annotations

import functools
import importlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from . import comfy_models
from .comfyui import ComfyUI
from .placing import BIG, SMALL_CLIP, end_node, small_clip

pytestmark = pytest.mark.usefixtures("_inference_mode")


@pytest.fixture(params=["legacy", "dynamic"])
def card(comfy: ComfyUI, request: pytest.FixtureRequest) -> ComfyUI:
    """ComfyUI with one of its memory managers."""
    comfy.sim.cap = BIG
    if request.param == "dynamic":
        if not comfy.has_dynamic:
            pytest.skip("This ComfyUI has no dynamic VRAM (it came after 0.3.75).")
        comfy.enable_dynamic()
    return comfy


@pytest.fixture(params=[torch.float16, torch.float8_e4m3fn], ids=["fp16", "fp8"])
def load(card: ComfyUI, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Any]]:
    """ComfyUI's loader of a small CLIP-L that is in a file."""
    import folder_paths

    with card.dynamic_off():
        made_by = {"disable_dynamic": True} if card.has_dynamic else {}
        state = small_clip(
            card, torch.device("cpu"), **made_by
        ).cond_stage_model.clip_l.transformer.state_dict()
    file = tmp_path / "small.safetensors"
    save_file({name: value.to(request.param).clone() for name, value in state.items()}, file)
    before = folder_paths.folder_names_and_paths["text_encoders"]
    folder_paths.folder_names_and_paths["text_encoders"] = ([str(tmp_path)], {".safetensors"})
    config = json.loads((card.path / "comfy" / "sd1_clip_config.json").read_text()) | SMALL_CLIP
    encoder = importlib.import_module("comfy.sd1_clip").SDClipModel
    options = {
        "initial_device": torch.device("cpu"),
        "clip_l_class": functools.partial(
            encoder, return_projected_pooled=False, textmodel_json_config=config
        ),
    }
    kind = card.sd.CLIPType.STABLE_DIFFUSION
    yield lambda: card.sd.load_clip([str(file)], clip_type=kind, model_options=dict(options))
    folder_paths.folder_names_and_paths["text_encoders"] = before


def ours(load: Callable[[], Any], wish: str, host: str = "auto") -> tuple[Any, Any]:
    from offload_runtime.adapter import Placements, load_and_place
    from offload_runtime.policy import Policy, Source, SourceKind

    policy = Policy.for_component(
        Source(SourceKind.NODE, "node 1"), "text_encoder", placement=wish, host=host
    )
    (clip,), placements, count = load_and_place(
        lambda: (load(),), ("clip",), {"clip_name": "small.safetensors"}, policy, Placements()
    )
    assert count == 1
    return clip, placements


@pytest.mark.parametrize("wish", ["layerwise", "resident", "auto"])
def test_what_our_loader_loads_encodes_as_what_cores_does(
    card: ComfyUI, load: Callable[[], Any], wish: str, request: pytest.FixtureRequest
) -> None:
    core = load()
    expected = comfy_models.encode(core, "fox")[0]
    end_node(card)
    card.mm.unload_all_models()
    clip, placements = ours(load, wish)
    dynamic = "dynamic" in request.node.callspec.id
    assert getattr(clip.patcher, "is_dynamic", bool)() is dynamic
    for _ in range(2):
        assert torch.equal(comfy_models.encode(clip, "fox")[0], expected)
        end_node(card)
    (row,) = placements.report().rows
    assert row.asked == wish
    assert row.device.startswith("sim")
    if dynamic:
        assert row.host_planned is None
        assert row.host_now.mapped > row.bytes / 2, "ComfyUI itself leaves the weights in their file"
    elif wish == "layerwise":
        assert row.layer_runs > 0
        assert row.moved_bytes > 0
    on_card = row.tiers.get("sim:0", 0)
    assert on_card >= (row.bytes if wish == "resident" else 0)
