"""What a workflow loads beside the usual four, on the card: a ControlNet inside the sampler, and an audio encoder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from .comfyui import ComfyUI
from .placing import BIG, MIB, PlacedObject, end_node, ours_on

sys.path.append(str(Path(__file__).resolve().parents[1] / "comfy"))
import coverage_others as tiny
from coverage_check import ramp, seed

sys.path.pop()

pytestmark = pytest.mark.usefixtures("_inference_mode")


def place(socket: str, value: Any, wish: str, **options: Any) -> PlacedObject:
    from offload_runtime.adapter import Placements, apply_policy
    from offload_runtime.policy import Policy, Source, SourceKind

    policy = Policy.for_component(
        Source(SourceKind.OVERRIDE, "Set Placement, node 1"), socket, placement=wish, **options
    )
    out, placements = apply_policy(policy, {socket: value}, {}, Placements())
    return PlacedObject(out[socket], placements.placed[0])


def control_net(comfy: ComfyUI) -> Any:
    from comfy import controlnet

    with comfy.dynamic_off():
        model = tiny.control_net("cpu", tiny.TINY_UNET)
    seed(model)
    return controlnet.ControlNet(model, load_device=comfy.mm.get_torch_device(), manual_cast_dtype=None)


def control(comfy: ComfyUI, value: Any) -> torch.Tensor:
    """What sampling does with it in each of two steps."""
    copy = value.copy()  # Apply ControlNet
    comfy.mm.load_models_gpu(copy.get_models())
    device = comfy.sim.device
    for _ in range(2):
        result = copy.control_model(
            x=ramp(1, 4, 8, 8).to(device),
            hint=ramp(1, 3, 64, 64).to(device),
            timesteps=torch.ones(1).to(device),
            context=ramp(1, 3, 16).to(device),
        )["output"][-1].cpu()
    end_node(comfy)
    return result


def audio_encoder(comfy: ComfyUI) -> Any:
    from comfy.audio_encoders import audio_encoders, whisper

    made = audio_encoders.AudioEncoderModel.__new__(audio_encoders.AudioEncoderModel)
    made.load_device = comfy.mm.text_encoder_device()
    sizes = {"n_audio_state": 64, "n_audio_head": 2, "n_audio_layer": 4}
    with comfy.dynamic_off():
        made.model = whisper.WhisperLargeV3(
            dtype=torch.float32, device="cpu", operations=comfy.ops.manual_cast, **sizes
        )
    seed(made.model)
    made.patcher = comfy.model_patcher.ModelPatcher(
        made.model, load_device=made.load_device, offload_device=torch.device("cpu")
    )
    made.model_sample_rate, made.dtype = 16000, torch.float32
    return made


def listen(comfy: ComfyUI, value: Any) -> torch.Tensor:
    heard = value.encode_audio(ramp(1, 1, 4000), 16000)["encoded_audio"].cpu()
    end_node(comfy)
    return heard


CASES = {"control_net": (control_net, control), "audio_encoder": (audio_encoder, listen)}


@pytest.mark.parametrize("socket", CASES)
def test_it_streams_and_gives_the_same(comfy: ComfyUI, socket: str) -> None:
    make, use = CASES[socket]
    comfy.sim.cap = BIG
    wired = make(comfy)
    expected = use(comfy, wired)
    comfy.mm.unload_all_models()
    placed = place(socket, wired, "layerwise", vram_budget="1MB")
    for _ in range(2):
        assert torch.equal(use(comfy, placed.value), expected)
    row = placed.row
    assert (row.applied, row.component) == ("layerwise", socket)
    assert row.moved_bytes > 0
    assert row.tiers["slot"] > 0
    comfy.mm.unload_all_models()
    end_node(comfy)
    assert torch.equal(use(comfy, wired), expected), "the object that came in is as it was"


@pytest.mark.parametrize("socket", CASES)
@pytest.mark.parametrize("wish", ["resident", "auto"])
def test_whole_it_gives_the_same(comfy: ComfyUI, socket: str, wish: str) -> None:
    make, use = CASES[socket]
    comfy.sim.cap = BIG
    wired = make(comfy)
    expected = use(comfy, wired)
    placed = place(socket, wired, wish)
    assert torch.equal(use(comfy, placed.value), expected)
    assert placed.row.applied == ("comfyui" if wish == "auto" else "resident")


def test_an_audio_encoder_computes_on_the_cpu(comfy: ComfyUI) -> None:
    comfy.sim.cap = BIG
    wired = audio_encoder(comfy)
    live = comfy.sim.memory.live
    placed = place("audio_encoder", wired, "cpu")
    listen(comfy, placed.value)
    assert placed.row.device == "cpu"
    assert comfy.sim.memory.live < live + MIB
    assert wired.load_device == comfy.sim.device


def test_a_control_net_cannot_compute_away_from_the_diffusion_model(comfy: ComfyUI) -> None:
    comfy.sim.cap = BIG
    wired = control_net(comfy)
    expected = control(comfy, wired)
    placed = place("control_net", wired, "cpu")
    assert torch.equal(control(comfy, placed.value), expected)
    assert placed.row.decided == "auto"
    assert "computes inside the diffusion model" in placed.row.why


@pytest.mark.parametrize("wish", ["layerwise", "cpu"])
def test_under_dynamic_vram_it_gives_the_same(comfy: ComfyUI, wish: str) -> None:
    if not comfy.has_dynamic:
        pytest.skip("this ComfyUI has no dynamic VRAM")
    comfy.sim.cap = BIG
    comfy.enable_dynamic()
    wired = control_net(comfy)
    expected = control(comfy, wired)
    placed = place("control_net", wired, wish)
    assert torch.equal(control(comfy, placed.value), expected)
    assert ours_on(wired.control_model) == set()
