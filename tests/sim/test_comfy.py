"""Real ComfyUI on the simulated card: each kind of model, in each memory regime, with the CPU's numbers."""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from . import Accelerator, RaceFault, ReadBeforeArrival, comfy_models
from .comfy_models import CPU
from .comfyui import ComfyUI
from .streams import SimStream

MIB = 1 << 20
BIG = 8 << 30

pytestmark = pytest.mark.usefixtures("_as_the_executor_runs_nodes")

TextEncoder = Callable[..., Any]


@pytest.fixture
def _as_the_executor_runs_nodes() -> Iterator[None]:
    with torch.inference_mode():
        yield


def reference(build: TextEncoder, comfy: ComfyUI, **options: Any) -> torch.Tensor:
    return comfy_models.encode(build(comfy, CPU, **options))[0]


@pytest.mark.parametrize(
    ("build", "config"),
    [(comfy_models.clip_l, {}), (comfy_models.t5_base, {"num_layers": 2})],
    ids=["clip_l", "t5"],
)
def test_a_text_encoder_that_fits_is_loaded_once(
    comfy: ComfyUI, build: TextEncoder, config: dict[str, int]
) -> None:
    """Real geometries, except that T5 has two layers."""
    comfy.sim.cap = BIG
    expected = reference(build, comfy, config=config)
    clip = build(comfy, config=config)
    for run in range(2):
        with comfy.sim.measure() as m:
            got = comfy_models.encode(clip)[0]
        assert torch.equal(got, expected)
        assert m.kernels > 60
        assert (m.to_device > 60 * MIB) == (run == 0)
    assert clip.patcher.loaded_size() == clip.patcher.model_size()
    assert clip.cond_stage_model.device == comfy.sim.device


@pytest.mark.parametrize(
    ("build", "room"), [(comfy_models.clip_l, 60), (comfy_models.t5_base, 50)], ids=["clip_l", "t5"]
)
def test_a_text_encoder_that_fits_partly_streams_the_rest(
    comfy: ComfyUI, build: TextEncoder, room: int
) -> None:
    """The token table needs to fit, or 0.3.75 moves the whole encode to the CPU: see the next test."""
    expected = reference(build, comfy)
    clip = build(comfy)
    comfy.cap_for(room * MIB)
    comfy_models.encode(clip)
    with comfy.sim.measure() as m:
        got = comfy_models.encode(clip)[0]
    assert torch.equal(got, expected)
    assert 0 < clip.patcher.loaded_size() < clip.patcher.model_size()
    assert m.kernels > 80
    # Not all of what stays behind is used: an encoder has an output projection, and one block's bias table.
    streamed = clip.patcher.model_size() - clip.patcher.loaded_size()
    assert streamed * 0.5 < m.to_device < streamed * 1.3
    assert m.overlap_ms > 0


@pytest.mark.card(shapes=True)
def test_t5_xxl_of_real_size_streams_in_shape_only_mode(comfy: ComfyUI) -> None:
    """9.5 GB through ComfyUI's real T5 on a card that holds none of it, in seconds and in no memory."""
    t5 = importlib.import_module("comfy.text_encoders.t5")
    config = json.loads((Path(t5.__file__).parent / "t5_config_xxl.json").read_text())
    model = t5.T5(config, torch.float16, torch.device("meta"), comfy.ops.manual_cast).to_empty(device="cpu")
    patcher = comfy.model_patcher.ModelPatcher(model, comfy.sim.device, CPU)
    patcher.patch_model(comfy.sim.device, lowvram_model_memory=0.1)
    tokens = torch.zeros(1, 256, dtype=torch.int64, device=comfy.sim.device)
    start = time.process_time()
    with comfy.sim.measure() as m:
        result = model(tokens, None)[0]
    comfy.sim.synchronize()
    patcher.unpin_all_weights()
    assert result.shape == (1, 256, 4096)
    assert m.to_device > 9e9
    assert m.ms > 9e9 / comfy.sim.profile.link * 1000
    assert comfy.sim.memory.weights_peak < 1e9
    assert time.process_time() - start < 20


def test_an_encode_that_left_the_card_is_seen_by_its_kernels(comfy: ComfyUI) -> None:
    """0.3.75 runs the encoder where its token table is; 0.33 copies the table. Equality cannot tell."""
    expected = reference(comfy_models.clip_l, comfy)
    clip = comfy_models.clip_l(comfy)
    comfy.cap_for(10 * MIB)
    with comfy.sim.measure() as m:
        got = comfy_models.encode(clip)[0]
    assert torch.equal(got, expected)
    knows_its_device = hasattr(clip.cond_stage_model.clip_l, "execution_device") and comfy.has_dynamic
    assert (m.kernels > 30) == knows_its_device


@pytest.mark.comfyui(vram="novram")
def test_novram_keeps_the_text_encoder_off_the_card(comfy: ComfyUI) -> None:
    expected = reference(comfy_models.clip_l, comfy)
    clip = comfy_models.clip_l(comfy)
    assert torch.equal(comfy_models.encode(clip)[0], expected)
    assert clip.patcher.loaded_size() == 0 or clip.patcher.load_device == CPU


def test_a_lora_computes_the_same_streamed_and_on_the_cpu(comfy: ComfyUI) -> None:
    def patched(clip: Any) -> Any:
        generator = torch.Generator().manual_seed(3)
        keys = [key for key in clip.patcher.model_state_dict() if key.endswith("mlp.fc1.weight")]
        other = clip.clone()
        shape = clip.patcher.model_state_dict()[keys[0]].shape
        delta = (torch.randn(shape, generator=generator) * 0.01,)
        assert set(other.add_patches({key: delta for key in keys}, 1.0)) == set(keys)
        return other

    comfy.sim.cap = BIG
    plain = reference(comfy_models.clip_l, comfy)
    expected = comfy_models.encode(patched(comfy_models.clip_l(comfy, CPU)))[0]
    got = comfy_models.encode(patched(comfy_models.clip_l(comfy)))[0]
    torch.testing.assert_close(got, expected, atol=2e-2, rtol=2e-2)
    assert not torch.allclose(got, plain, atol=2e-2)


@pytest.mark.parametrize("cap", [BIG, None], ids=["fits", "streams"])
def test_an_image_vae_decodes_and_encodes(comfy: ComfyUI, cap: int | None) -> None:
    latent = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(1))
    on_cpu, ours = comfy_models.kl_vae(comfy, CPU), comfy_models.kl_vae(comfy)
    if cap is None:
        comfy.cap_for(MIB)
    expected = on_cpu.decode(latent)
    for _ in range(2):
        with comfy.sim.measure() as m:
            picture = ours.decode(latent)
    assert picture.shape == (1, 64, 64, 3)
    assert picture.device == CPU
    assert torch.equal(picture, expected)
    assert m.kernels > 100
    assert (m.to_device > MIB) == (cap is None)
    assert torch.equal(ours.encode(picture), on_cpu.encode(expected))


def test_a_decode_that_runs_out_of_memory_falls_back_to_tiles(
    comfy: ComfyUI, monkeypatch: pytest.MonkeyPatch
) -> None:
    latent = torch.randn(1, 4, 32, 32, generator=torch.Generator().manual_seed(1))
    vae, tile = comfy_models.kl_vae(comfy), {"tile_x": 16, "tile_y": 16, "overlap": 4}
    expected = vae.decode_tiled(latent, **tile)
    enough_for_a_tile = comfy.sim.memory.peak
    calls: list[str] = []
    tiled = vae.decode_tiled_
    monkeypatch.setattr(vae, "decode_tiled_", lambda samples: calls.append("tiled") or tiled(samples, **tile))
    # ComfyUI expects little here, so that it loads the model, tries, and fails for real.
    monkeypatch.setattr(vae, "memory_used_decode", lambda shape, dtype: MIB)
    monkeypatch.setattr(comfy.mm, "minimum_inference_memory", lambda: 10 * MIB)
    comfy.sim.cap = int(enough_for_a_tile * 1.2)
    picture = vae.decode(latent)
    assert calls == ["tiled"]
    assert picture.shape == (1, 256, 256, 3)
    assert torch.equal(picture, expected)


@pytest.mark.parametrize("cap", [BIG, None], ids=["fits", "streams"])
def test_a_video_vae_decodes_and_encodes(comfy: ComfyUI, cap: int | None) -> None:
    latent = torch.randn(1, 16, 2, 2, 2, generator=torch.Generator().manual_seed(1))
    on_cpu, ours = comfy_models.wan_vae(comfy, CPU), comfy_models.wan_vae(comfy)
    if cap is None:
        comfy.cap_for(MIB)
    expected = on_cpu.decode(latent)
    with comfy.sim.measure() as m:
        video = ours.decode(latent)
    assert video.shape == (1, 5, 16, 16, 3)
    assert torch.equal(video, expected)
    if cap is None:
        # One latent frame after the other: the streamed weights come once for each.
        decoder = sum(p.nbytes for p in ours.first_stage_model.decoder.parameters())
        assert m.to_device > 1.5 * decoder
    assert torch.equal(ours.encode(expected[0]), on_cpu.encode(expected[0]))


@pytest.mark.parametrize("cap", [BIG, None], ids=["fits", "streams"])
def test_clip_vision(comfy: ComfyUI, tmp_path: Path, cap: int | None) -> None:
    config = tmp_path / "vision.json"
    config.write_text(json.dumps(comfy_models.VISION_CONFIG))
    image = torch.rand(1, 64, 64, 3, generator=torch.Generator().manual_seed(1))
    ours = comfy_models.vision(comfy, str(config))
    if cap is None:
        comfy.cap_for(MIB)
    with torch.inference_mode():
        with comfy.sim.measure() as m:
            got = ours.encode_image(image)
        comfy.mm.unload_all_models()
        ours.load_device = ours.patcher.load_device = CPU
        expected = ours.encode_image(image)
    assert m.kernels > 60
    for key in ("last_hidden_state", "image_embeds", "penultimate_hidden_states"):
        assert torch.equal(got[key], expected[key])


@pytest.mark.parametrize("regime", ["fits", "streams", "novram"])
def test_sampling_a_diffusion_transformer(sim: Accelerator, regime: str) -> None:
    comfy = ComfyUI(sim, vram="novram" if regime == "novram" else "normal")
    try:
        on_cpu = comfy_models.sd3(comfy)
        on_cpu.load_device = CPU
        expected = comfy_models.sample(comfy, on_cpu)
        ours = comfy_models.sd3(comfy)
        if regime == "streams":
            comfy.cap_for(4 * MIB)
        with sim.measure() as m:
            got = comfy_models.sample(comfy, ours)
        assert torch.isfinite(got).all()
        assert torch.equal(got, expected)
        assert m.kernels > 200
        once = ours.model_size()
        assert m.to_device < 2 * once if regime == "fits" else m.to_device > 1.5 * once
    finally:
        comfy.close()


def test_models_evict_each_other_as_memory_demands(comfy: ComfyUI) -> None:
    """A second model pushes the first one out, through ComfyUI's own free_memory."""
    first, second = comfy_models.t5_base(comfy), comfy_models.clip_l(comfy)
    comfy.cap_for(int(first.patcher.model_size() * 1.3))
    comfy_models.encode(first)
    assert first.patcher.loaded_size() == first.patcher.model_size()
    with comfy.sim.measure() as m:
        comfy_models.encode(second)
    assert first.patcher.loaded_size() < first.patcher.model_size()
    assert m.to_host > 0


@pytest.mark.comfyui(pinned=False, streams=0)
def test_without_pins_and_streams_nothing_overlaps(comfy: ComfyUI) -> None:
    clip = comfy_models.t5_base(comfy)
    comfy.cap_for(50 * MIB)
    with comfy.sim.measure() as m:
        comfy_models.encode(clip)
    assert m.to_device_pageable == m.to_device > 0
    assert m.overlap_ms == pytest.approx(0, abs=0.1)
    assert comfy.sim.pinned == 0


def test_a_quantised_weight_moves_and_multiplies(comfy: ComfyUI) -> None:
    """ComfyUI's own wrapper around fp8 data, whose parts must arrive on the card."""
    quantised = importlib.import_module("comfy.quant_ops").QuantizedTensor
    generator = torch.Generator().manual_seed(2)
    weight, given = torch.randn(32, 64, generator=generator), torch.randn(4, 64, generator=generator)
    packed = quantised.from_float(weight, "TensorCoreFP8Layout", scale=torch.tensor(0.01))
    ours = packed.to(comfy.sim.device)
    assert type(ours) is quantised
    assert ours.device == ours._qdata.device == comfy.sim.device
    got = torch.nn.functional.linear(given.to(comfy.sim.device), ours)
    assert got.device == comfy.sim.device
    torch.testing.assert_close(got.cpu(), torch.nn.functional.linear(given, packed.dequantize()))
    assert torch.equal(ours.to(CPU)._qdata.view(torch.uint8), packed._qdata.view(torch.uint8))


def without_waits_of(monkeypatch: pytest.MonkeyPatch, waiting: Callable[[int], bool]) -> None:
    """Break ComfyUI: the streams that ``waiting`` picks do not wait for others."""
    wait = SimStream.wait_stream

    def broken(self: SimStream, stream: torch.Stream) -> None:
        if not waiting(self.stream_id):
            wait(self, stream)

    monkeypatch.setattr(SimStream, "wait_stream", broken)


@pytest.mark.parametrize(
    ("waiting", "fault"),
    [
        (lambda stream: False, None),
        (lambda stream: stream == 0, ReadBeforeArrival),
        (lambda stream: stream != 0, RaceFault),
    ],
    ids=["intact", "compute does not wait", "copies do not wait"],
)
def test_a_missing_wait_in_comfyui_is_caught(
    comfy: ComfyUI,
    monkeypatch: pytest.MonkeyPatch,
    waiting: Callable[[int], bool],
    fault: type[Exception] | None,
) -> None:
    clip = comfy_models.clip_l(comfy)
    comfy.cap_for(60 * MIB)
    without_waits_of(monkeypatch, waiting)
    with pytest.raises(fault) if fault else nullcontext():
        comfy_models.encode(clip)
    comfy.sim.synchronize()


def test_closing_leaves_no_trace() -> None:
    with Accelerator() as sim:
        before = (torch.cuda.Stream, torch.cuda.is_available, torch.cuda.mem_get_info)
        comfy = ComfyUI(sim)
        mm = comfy.mm
        device, loaded = mm.get_torch_device, mm.current_loaded_models
        clip = comfy_models.clip_l(comfy)
        comfy_models.encode(clip)
        comfy.close()
        assert (torch.cuda.Stream, torch.cuda.is_available, torch.cuda.mem_get_info) == before
        assert mm.get_torch_device is not device
        assert mm.current_loaded_models is not loaded
        del clip
        assert sim.memory.live == 0, sim.memory.report()
        assert sim.pinned == 0
