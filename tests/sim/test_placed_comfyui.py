"""Our placements on real ComfyUI (legacy patchers) on the simulated card."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from . import Accelerator, comfy_models
from .comfy_models import CPU
from .comfyui import ComfyUI

MIB = 1 << 20
BIG = 8 << 30
PLACES = ("text_encoder", "image_encoder", "vae", "dit")

pytestmark = pytest.mark.usefixtures("_as_the_executor_runs_nodes")


@pytest.fixture
def _as_the_executor_runs_nodes() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture
def place(comfy: ComfyUI) -> Callable[..., tuple[Any, Callable[[], Any]]]:
    """Place one object; returns the placed one and a function that reads its row of the report."""
    from offload_runtime.adapter import Placements, apply_policy
    from offload_runtime.policy import Policy, Source, SourceKind

    def place(
        slot: str, value: Any, wish: str = "layerwise", **options: Any
    ) -> tuple[Any, Callable[[], Any]]:
        source = Source(SourceKind.NODE, "Placement Policy, node 1")
        policy = Policy.from_widgets(source, placements=dict.fromkeys(PLACES, wish), **options)
        out, placements = apply_policy(policy, {slot: value}, {}, Placements())
        return out[slot], placements.placed[0].row

    return place


TEXT = [(comfy_models.clip_l, "clip"), (comfy_models.t5_base, "t5")]
LATENT = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("build", [build for build, _ in TEXT], ids=[name for _, name in TEXT])
def test_a_layerwise_text_encoder_computes_on_the_card_with_the_cpus_numbers(
    comfy: ComfyUI, place: Callable[..., Any], build: Callable[..., Any]
) -> None:
    expected = comfy_models.encode(build(comfy, CPU))[0]
    comfy.sim.cap = BIG
    clip, row = place("clip", build(comfy))
    for _ in range(3):
        with comfy.sim.measure() as m:
            got = comfy_models.encode(clip)[0]
        assert torch.equal(got, expected)
        assert m.kernels > 80, "the encode ran on the card"
    assert (row().applied, row().layer_runs) == ("layerwise", 3 * 8)
    assert m.overlap_ms > 0


@pytest.mark.comfyui(pinned=False)
def test_without_pinned_memory_the_copies_still_overlap_and_the_numbers_are_the_same(
    comfy: ComfyUI, place: Callable[..., Any]
) -> None:
    expected = comfy_models.encode(comfy_models.clip_l(comfy, CPU))[0]
    comfy.sim.cap = BIG
    clip, _ = place("clip", comfy_models.clip_l(comfy))
    for _ in range(3):
        with comfy.sim.measure() as m:
            assert torch.equal(comfy_models.encode(clip)[0], expected)
    assert m.to_device_pageable > 10 * MIB
    assert m.overlap_ms > 0


def test_a_layerwise_encoder_takes_two_layers_of_the_card_and_evicts_nothing(
    comfy: ComfyUI, place: Callable[..., Any]
) -> None:
    comfy.sim.cap = BIG
    model = comfy_models.sd3(comfy)
    comfy.mm.load_models_gpu([model])
    loaded = model.loaded_size()
    clip, row = place("clip", comfy_models.clip_l(comfy))
    comfy.sim.cap = (
        comfy.sim.memory.live + clip.patcher.model_size() + comfy.mm.minimum_inference_memory() + 8 * MIB
    )
    live = comfy.sim.memory.live
    comfy_models.encode(clip)
    assert model.loaded_size() == loaded > 0
    slot = row().tiers["slot"]
    assert 0 < slot < row().bytes / 3
    assert comfy.sim.memory.live - live <= clip.patcher.loaded_size() + MIB
    comfy.mm.unload_all_models()
    assert row().tiers["slot"] == 0


def test_a_lora_computes_the_same_as_in_core(comfy: ComfyUI, place: Callable[..., Any]) -> None:
    def patched(clip: Any) -> Any:
        generator = torch.Generator().manual_seed(3)
        state = clip.patcher.model_state_dict()
        keys = [key for key in state if key.endswith("mlp.fc1.weight")]
        delta = (torch.randn(state[keys[0]].shape, generator=generator) * 0.01,)
        other = clip.clone()
        assert set(other.add_patches({key: delta for key in keys}, 1.0)) == set(keys)
        return other

    comfy.sim.cap = BIG
    plain = comfy_models.encode(comfy_models.clip_l(comfy, CPU))[0]
    core = patched(comfy_models.clip_l(comfy))
    comfy.cap_for(12 * MIB)  # nothing of it fits, so core patches as it streams, as it does under us
    expected = comfy_models.encode(core)[0]
    comfy.mm.unload_all_models()
    comfy.sim.cap = BIG
    clip, row = place("clip", comfy_models.clip_l(comfy))
    for _ in range(2):
        got = comfy_models.encode(patched(clip))[0]
        torch.testing.assert_close(got, expected, atol=2e-2, rtol=2e-2)
        assert not torch.allclose(got, plain, atol=2e-2)
        assert torch.equal(comfy_models.encode(clip)[0], plain)
    assert row().layer_runs == 4 * 8


@pytest.mark.parametrize("build", [comfy_models.kl_vae], ids=["kl"])
def test_a_layerwise_vae_decodes_and_encodes(
    comfy: ComfyUI, place: Callable[..., Any], build: Callable[..., Any]
) -> None:
    on_cpu = build(comfy, CPU)
    expected = on_cpu.decode(LATENT)
    comfy.sim.cap = BIG
    vae, row = place("vae", build(comfy))
    for _ in range(2):
        picture = vae.decode(LATENT)
        assert torch.equal(picture, expected)
    assert torch.equal(vae.encode(picture), on_cpu.encode(expected))
    assert row().applied == "layerwise"


def test_a_looping_video_vae_recurses_through_its_layers(comfy: ComfyUI, place: Callable[..., Any]) -> None:
    latent = torch.randn(1, 16, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    expected = comfy_models.wan_vae(comfy, CPU).decode(latent)
    comfy.sim.cap = BIG
    vae, row = place("vae", comfy_models.wan_vae(comfy))
    for _ in range(2):
        assert torch.equal(vae.decode(latent), expected)
    assert row().component == "video_vae"
    assert row().layer_runs > 2 * 12


def test_sampling_with_a_layerwise_diffusion_model(comfy: ComfyUI, place: Callable[..., Any]) -> None:
    comfy.sim.cap = BIG
    expected = comfy_models.sample(comfy, comfy_models.sd3(comfy))
    comfy.mm.unload_all_models()
    model, row = place("model", comfy_models.sd3(comfy))
    assert torch.equal(comfy_models.sample(comfy, model), expected)
    assert row().layer_runs >= 4
    assert row().applied == "layerwise"


def test_an_interrupt_leaves_the_weights_and_the_next_encode_is_right(
    comfy: ComfyUI, place: Callable[..., Any]
) -> None:
    comfy.sim.cap = BIG
    expected = comfy_models.encode(comfy_models.clip_l(comfy, CPU))[0]
    clip, _ = place("clip", comfy_models.clip_l(comfy))
    comfy_models.encode(clip)
    layers = clip.cond_stage_model.get_submodule("clip_l.transformer.text_model.encoder.layers")
    ids = [id(p) for p in layers.parameters()]
    block = clip.cond_stage_model.get_submodule("clip_l.transformer.text_model.encoder.layers.3.mlp")

    def interrupt(*args: object) -> None:
        comfy.mm.interrupt_current_processing(True)
        comfy.mm.throw_exception_if_processing_interrupted()

    hook = block.register_forward_pre_hook(interrupt)
    with pytest.raises(comfy.mm.InterruptProcessingException):
        comfy_models.encode(clip)
    hook.remove()
    assert [id(p) for p in layers.parameters()] == ids
    assert torch.equal(comfy_models.encode(clip)[0], expected)


def test_after_everything_the_card_is_empty_and_no_pinned_memory_is_left(
    sim: Accelerator, comfy: ComfyUI, place: Callable[..., Any]
) -> None:
    comfy.sim.cap = BIG
    live, pinned = sim.memory.live, comfy.mm.TOTAL_PINNED_MEMORY
    clip, _ = place("clip", comfy_models.clip_l(comfy))
    comfy_models.encode(clip)
    assert pinned < comfy.mm.TOTAL_PINNED_MEMORY
    comfy.mm.unload_all_models()
    if hasattr(comfy.mm, "reset_cast_buffers"):
        comfy.mm.reset_cast_buffers()  # as the executor does after every node
    assert sim.memory.live == live, sim.memory.report()
    del clip
    gc.collect()
    assert pinned == comfy.mm.TOTAL_PINNED_MEMORY


@pytest.mark.parametrize("host", ["pinned", "staged", "mapped"])
def test_the_host_tier_that_was_asked_for_is_the_one_that_layers_come_from(
    comfy: ComfyUI, tmp_path: Path, host: str
) -> None:
    from safetensors.torch import save_file

    from offload_runtime.adapter import Placements, apply_policy
    from offload_runtime.policy import Policy, Source, SourceKind

    expected = comfy_models.encode(comfy_models.clip_l(comfy, CPU))[0]
    comfy.sim.cap = BIG
    clip = comfy_models.clip_l(comfy)
    file = tmp_path / "clip.safetensors"
    save_file({name: t.clone() for name, t in clip.cond_stage_model.state_dict().items()}, file)
    source = Source(SourceKind.OVERRIDE, "Set Placement, node 1")
    wish = Policy.for_component(source, "text_encoder", placement="layerwise", host=host)
    out, placements = apply_policy(wish, {"clip": clip}, {"clip": [file]}, Placements())
    for _ in range(2):
        assert torch.equal(comfy_models.encode(out["clip"])[0], expected)
    row = placements.placed[0].row()
    assert {"pinned": "pinned)", "staged": "from memory while", "mapped": "the model file"}[host] in row.how
    assert (comfy.mm.TOTAL_PINNED_MEMORY > 20 * MIB) == (host == "pinned")
    assert (row.tiers.get("file", 0) > 20 * MIB) == (host == "mapped")


def _as_stored(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Round a model to eight bits, and return a file of it in which projections are one tensor, as in OpenCLIP's."""
    stored = {}
    for name, parameter in model.named_parameters():
        narrow = parameter.detach().to(torch.float8_e4m3fn)
        with torch.no_grad():
            parameter.copy_(narrow)
        stored[name] = narrow
    for name in [name for name in stored if "q_proj" in name]:
        parts = [stored.pop(name.replace("q_proj", f"{part}_proj")) for part in "qkv"]
        stored[name.replace("q_proj.", "in_proj_")] = torch.cat(parts)
    return stored


def test_layers_that_a_loader_converted_and_split_are_copied_out_of_the_file(
    comfy: ComfyUI, tmp_path: Path
) -> None:
    from safetensors.torch import save_file

    from offload_runtime.adapter import Placements, apply_policy
    from offload_runtime.errors import WeightFileError
    from offload_runtime.policy import Policy, Source, SourceKind

    other = comfy_models.clip_l(comfy, CPU)
    _as_stored(other.cond_stage_model)
    expected = comfy_models.encode(other)[0]
    comfy.sim.cap = BIG
    clip = comfy_models.clip_l(comfy)
    stored = _as_stored(clip.cond_stage_model)
    file = tmp_path / "clip.safetensors"
    save_file(stored, file)
    wish = Policy.for_component(
        Source(SourceKind.OVERRIDE, "Set Placement, node 1"),
        "text_encoder",
        placement="layerwise",
        host="mapped",
    )
    out, placements = apply_policy(wish, {"clip": clip}, {"clip": [file]}, Placements())
    dtypes = [p.dtype for p in clip.cond_stage_model.parameters()]
    in_layers = placements.placed[0].facts.layer_bytes
    for _ in range(2):
        assert torch.equal(comfy_models.encode(out["clip"])[0], expected)
        row = placements.placed[0].row()
        assert row.host == "mapped"
        assert row.tiers["file"] >= in_layers > 20 * MIB, "the table, too"
    assert [p.dtype for p in clip.cond_stage_model.parameters()] == dtypes
    content = file.read_bytes()
    with open(file, "r+b") as opened:
        opened.truncate(4096)
    with pytest.raises(WeightFileError, match=r"clip\.safetensors has changed"):
        comfy_models.encode(out["clip"])
    file.write_bytes(content)
    assert torch.equal(comfy_models.encode(out["clip"])[0], expected)


@pytest.mark.parametrize("change", ["cut off", "written to", "replaced"])
def test_a_model_file_that_changes_under_its_layers_is_never_misread(
    comfy: ComfyUI, tmp_path: Path, change: str
) -> None:
    from safetensors.torch import save_file

    from offload_runtime.adapter import Placements, apply_policy
    from offload_runtime.errors import WeightFileError
    from offload_runtime.policy import Policy, Source, SourceKind

    comfy.sim.cap = BIG
    clip = comfy_models.clip_l(comfy)
    file = tmp_path / "clip.safetensors"
    save_file({name: t.clone() for name, t in clip.cond_stage_model.state_dict().items()}, file)
    content = file.read_bytes()
    wish = Policy.for_component(
        Source(SourceKind.OVERRIDE, "Set Placement, node 1"),
        "text_encoder",
        placement="layerwise",
        host="mapped",
    )
    out, placements = apply_policy(wish, {"clip": clip}, {"clip": [file]}, Placements())
    expected = comfy_models.encode(out["clip"])[0]
    resting = placements.placed[0].row().tiers["file"]
    if change == "replaced":
        (tmp_path / "new").write_bytes(b"another file")
        (tmp_path / "new").replace(file)
    else:
        with open(file, "r+b") as opened:
            opened.truncate(4096) if change == "cut off" else opened.write(content[:9000] + content[:8999:-1])
        for value in (out["clip"], clip):
            with pytest.raises(WeightFileError, match=r"clip\.safetensors has changed"):
                comfy_models.encode(value)
        file.write_bytes(content)
    for _ in range(2):
        assert torch.equal(comfy_models.encode(out["clip"])[0], expected)
    assert placements.placed[0].row().tiers["file"] == resting
    assert torch.equal(comfy_models.encode(clip)[0], expected)
