"""Models that ComfyUI's own loaders convert: their layers are read from the file all the same, on the CPU."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import comfy.model_management as mm
import models
import pytest
import torch
from graphs import Graph, node, register
from placing import PlacedObject, policy
from safetensors.torch import load_file, save_file

from offload_runtime.adapter.attachment import KEY
from offload_runtime.errors import WeightFileError
from scripts import demo_geometry as geometry

FP8, FP16, BF16, FP32 = torch.float8_e4m3fn, torch.float16, torch.bfloat16, torch.float32

NARROWER = {FP16: [FP8], BF16: [FP8], FP32: [FP8, FP16, BF16]}


class Converted:
    """A model as a loader makes it of a file in a narrower dtype."""

    def __init__(self, family: models.Family, file: Path, stored: int = 0) -> None:
        self._family, self.slot = family, family.slot
        self.value = family.make()
        self.file = file
        self.model = models.patcher_of(self.value).model
        self.dtypes = {name: p.dtype for name, p in self.model.named_parameters()}
        narrower = NARROWER[statistics.mode(self.dtypes.values())]
        self.stored = narrower[stored]
        kept = {name: p.detach().to(self.stored) for name, p in self.model.named_parameters()}
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(kept[name])
        save_file(kept, file)
        self.before = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        self.parameters = {name: id(p) for name, p in self.model.named_parameters()}

    def run(self, value: Any) -> torch.Tensor:
        return self._family.run(value)

    def place(self, placement: str = "layerwise") -> PlacedObject:
        return PlacedObject(self._family.slot, self.value, policy(placement), [self.file])

    def check_as_it_was(self, *, same_objects: bool = True) -> None:
        """The same Parameters, of the same dtype and values; reading them wakes them."""
        for name, parameter in self.model.named_parameters():
            assert not same_objects or id(parameter) == self.parameters[name]
            assert parameter.dtype == self.dtypes[name]
            assert torch.equal(parameter, self.before[name])
            assert type(parameter) is torch.nn.Parameter


KINDS = [*((name, 0) for name in models.FAMILIES), *((name, n) for name in ("model", "vae") for n in (1, 2))]


@pytest.fixture(params=KINDS, ids=lambda kind: "-".join(map(str, kind)))
def converted(tmp_path: Path, request: pytest.FixtureRequest) -> Converted:
    """Every kind of component, stored in every dtype that it may have been converted from."""
    name, stored = request.param
    return Converted(models.FAMILIES[name], tmp_path / "model.safetensors", stored)


def test_its_layers_run_out_of_the_file_to_the_bit(converted: Converted) -> None:
    expected = converted.run(converted.value)
    placed = converted.place()
    layers = placed.placements.placed[0].facts.layers
    in_layers = placed.placements.placed[0].facts.layer_bytes
    for runs in (1, 2, 3):
        assert torch.equal(converted.run(placed.value), expected)
        row = placed.row
        assert (row.applied, row.layer_runs) == ("layerwise", runs * layers), row.how
        assert f"{layers} of {layers} layers run on the CPU" in row.how
        assert row.tiers["file"] >= 0.95 * in_layers
        assert row.moved_bytes >= 0.95 * runs * in_layers
        mm.unload_all_models()
    assert not converted.run(placed.value).isnan().any()
    converted.check_as_it_was()


def test_memory_is_given_back_in_the_dtype_that_it_was_loaded_in(converted: Converted) -> None:
    expected = converted.run(converted.value)
    converted.run(converted.place().value)
    resident = converted.place("resident")
    assert torch.equal(converted.run(resident.value), expected)
    assert set(k for k, count in resident.row.tiers.items() if count) == {"memory"}
    converted.check_as_it_was()


def test_whoever_does_not_place_it_has_it_as_it_was_loaded(converted: Converted) -> None:
    expected = converted.run(converted.value)
    placed = converted.place()
    converted.run(placed.value)
    assert torch.equal(converted.run(converted.value), expected)
    assert torch.equal(converted.run(placed.value), expected)
    assert placed.row.tiers["file"] > 0
    state = {name: value.clone() for name, value in placed.patcher.model_state_dict().items()}
    assert {
        name: value.dtype for name, value in state.items() if name in converted.dtypes
    } == converted.dtypes
    saved = converted.file.with_name("saved.safetensors")
    models.save(converted.model, saved)
    kept = load_file(saved)
    assert all(torch.equal(kept[name], value) for name, value in converted.before.items() if name in kept)


def _patches(model: torch.nn.Module) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(3)
    return {
        name: (torch.randn(p.shape, generator=generator) * 0.02,)
        for name, p in model.named_parameters()
        if p.ndim >= 2 and name.endswith("weight")
    }


def test_a_lora_before_and_after_gives_the_bits_that_it_gives_without_us(converted: Converted) -> None:
    def with_lora(value: Any) -> Any:
        clone = value.clone()
        patcher = models.patcher_of(clone)
        assert len(patcher.add_patches(_patches(converted.model), 0.5)) == len(_patches(converted.model))
        return clone

    if not hasattr(converted.value, "clone"):
        pytest.skip("Nobody patches those.")
    plain = converted.run(converted.value)
    before = with_lora(converted.value)
    expected = converted.run(before)
    assert not torch.equal(expected, plain)
    converted.run(converted.value)  # the model is without patches
    placed, patched = (
        converted.place(),
        PlacedObject(converted.slot, before, policy("layerwise"), [converted.file]),
    )
    after = with_lora(placed.value)
    for _ in range(2):
        for value in (after, patched.value, before):
            assert torch.equal(converted.run(value), expected)
            assert torch.equal(converted.run(placed.value), plain)
            assert placed.row.applied == "layerwise"
        mm.unload_all_models()
    assert patched.row.decided == "layerwise"
    del before, after, patched
    converted.check_as_it_was(same_objects=False)  # ComfyUI has put others in their place


def _touch(file: Path) -> None:
    os.utime(file)


def _replace(file: Path) -> None:
    file.with_suffix(".part").write_bytes(b"another file")
    os.replace(file.with_suffix(".part"), file)


def _cut_off(file: Path) -> None:
    os.truncate(file, 4096)


def _write_others(file: Path) -> None:
    content = file.read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    with open(file, "r+b") as opened:
        opened.seek(header)
        opened.write(content[header:][::-1])


@pytest.mark.parametrize("change", [_touch, _replace])
@pytest.mark.parametrize("loaded", [True, False])
def test_a_file_that_is_touched_or_replaced_changes_nothing(
    family: models.Family, tmp_path: Path, change: Callable[[Path], None], loaded: bool
) -> None:
    converted = Converted(family, tmp_path / "model.safetensors")
    placed = converted.place()
    expected = converted.run(placed.value)
    if not loaded:
        mm.unload_all_models()
    change(converted.file)
    assert torch.equal(converted.run(placed.value), expected)
    assert placed.row.applied == "layerwise"


@pytest.mark.parametrize("change", [_cut_off, _write_others])
def test_weights_that_are_gone_are_an_error_and_never_other_numbers(
    family: models.Family, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    converted = Converted(family, tmp_path / "model.safetensors")
    placed = converted.place()
    expected, content = converted.run(placed.value), converted.file.read_bytes()
    change(converted.file)
    for value in (placed.value, converted.value):
        with pytest.raises(WeightFileError, match=r"model\.safetensors has changed on disk"):
            converted.run(value)
    converted.file.write_bytes(content)
    assert torch.equal(converted.run(placed.value), expected)
    assert torch.equal(converted.run(converted.value), expected)


def test_projections_that_a_loader_split_are_read_from_the_fused_tensor(tmp_path: Path) -> None:
    """As ComfyUI does with OpenCLIP's."""
    family = models.FAMILIES["clip"]
    value = family.make()
    model = value.cond_stage_model
    state = {name: p.detach().clone() for name, p in model.named_parameters()}
    for name in [name for name in state if "q_proj" in name]:
        parts = [state.pop(name.replace("q_proj", f"{part}_proj")) for part in "qkv"]
        state[name.replace("q_proj.", "in_proj_")] = torch.cat(parts)
    save_file(state, tmp_path / "model.safetensors")
    expected = family.run(value)
    placed = PlacedObject("clip", value, policy("layerwise"), [tmp_path / "model.safetensors"])
    assert torch.equal(family.run(placed.value), expected)
    row = placed.row
    assert (row.applied, row.tiers["file"]) == ("layerwise", row.bytes - row.tiers.get("memory", 0))
    assert row.tiers["file"] >= placed.placements.placed[0].facts.layer_bytes


# -- with ComfyUI's loaders ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    there = tmp_path_factory.mktemp("models")
    generator = torch.Generator().manual_seed(0)
    for name, tensors, dtype in (
        ("t5_fp8", geometry.t5_base(), FP8),
        ("t5_fp16", geometry.t5_base(), FP16),
        ("sd3_fp16", geometry.sd3_tiny(), FP16),
        ("vae_fp16", geometry.vae_16_channels(), FP16),
        ("vae_bf16", geometry.vae_16_channels(), BF16),
    ):
        drawn = {
            key: (torch.randn(weight.shape, generator=generator) * weight.std + weight.mean).to(dtype)
            for key, weight in tensors.items()
        }
        save_file(drawn, there / f"{name}.safetensors")
    return there


def _encode(clip: Any) -> torch.Tensor:
    with torch.inference_mode():
        return clip.encode_from_tokens(clip.tokenize("a small boat, at night")).clone()


def _denoise(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        mm.load_models_gpu([model])
        return model.model.apply_model(
            torch.linspace(-1, 1, 16 * 64).reshape(1, 16, 8, 8),
            torch.ones(1),
            c_crossattn=torch.linspace(-1, 1, 3 * 768).reshape(1, 3, 768),
            y=torch.linspace(-1, 1, 768).reshape(1, 768),
        ).clone()


def _reconstruct(vae: Any) -> torch.Tensor:
    with torch.inference_mode():
        return vae.decode(vae.encode(torch.linspace(0, 1, 32 * 32 * 3).reshape(1, 32, 32, 3))).clone()


CORE = [
    ("CLIPLoader", "clip", {"clip_name": "t5_fp8", "type": "stable_audio"}, _encode),
    ("CLIPLoader", "clip", {"clip_name": "t5_fp16", "type": "stable_audio"}, _encode),
    ("UNETLoader", "model", {"unet_name": "sd3_fp16", "weight_dtype": "default"}, _denoise),
    ("VAELoader", "vae", {"vae_name": "vae_fp16"}, _reconstruct),
    ("VAELoader", "vae", {"vae_name": "vae_bf16"}, _reconstruct),
]


@pytest.mark.parametrize(
    ("loader", "slot", "inputs", "use"), CORE, ids=[next(iter(c[2].values())) for c in CORE]
)
def test_behind_comfyuis_own_loader_nearly_all_is_read_from_the_file(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    loader: str,
    slot: str,
    inputs: dict[str, str],
    use: Callable[[Any], torch.Tensor],
) -> None:
    import folder_paths

    register()
    for kind in ("text_encoders", "diffusion_models", "vae"):
        paths = ([str(folder)], {".safetensors"})
        monkeypatch.setitem(folder_paths.folder_names_and_paths, kind, paths)
    folder_paths.filename_list_cache.clear()
    monkeypatch.setattr(folder_paths, "user_directory", str(tmp_path))
    inputs = {k: f"{v}.safetensors" if k.endswith("_name") else v for k, v in inputs.items()}
    layerwise = dict.fromkeys(("text_encoder", "vae", "diffusion_model"), "layerwise")
    seen = Graph().run(
        {
            "1": {"class_type": loader, "inputs": inputs},
            "2": node("PlacementPolicy", **layerwise),
            "3": node("Loader", policy=["2", 0], **{slot: ["1", 0]}),
            "4": node("Sink", value=["1", 0]),
            "5": node("Sink", value=["3", ("model", "clip", "vae").index(slot)]),
            "6": node("Sink", value=["3", 4]),
        }
    )
    placements = next(value for value in seen if hasattr(value, "report"))
    both = [value for value in seen if not hasattr(value, "report")]
    original, placed = sorted(both, key=lambda value: KEY in models.patcher_of(value).attachments)
    row = placements.report().rows[0]
    assert row.applied == "layerwise", row.why
    assert row.tiers["file"] >= 0.95 * placements.placed[0].facts.layer_bytes
    result = use(placed)
    assert placements.report().rows[0].layer_runs > 0
    assert torch.equal(use(original), result)
    assert torch.equal(use(placed), result)
