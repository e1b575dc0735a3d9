"""The loaders that place while they load: the same bits as ComfyUI's loader gives, and what memory holds of them."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import comfy.model_management as mm
import models
import pytest
import torch
from graphs import Graph, node, register
from safetensors.torch import save_file

from scripts import demo_geometry as geometry
from scripts import demo_models
from scripts.peak_memory import PeakMemory
from scripts.process_memory import mapped_ranges

FP8, FP16, BF16 = torch.float8_e4m3fn, torch.float16, torch.bfloat16


def anonymous() -> int:
    """Return the memory of this process that is no file's."""
    with PeakMemory(os.getpid()) as now:
        pass
    assert now.whole.anonymous is not None
    return now.whole.anonymous


LAYERWISE = dict.fromkeys(("text_encoder", "image_encoder", "vae", "diffusion_model"), "layerwise")


def write(tensors: geometry.Tensors, file: Path, dtype: torch.dtype) -> None:
    """Write a model file with seeded random weights."""
    generator = torch.Generator().manual_seed(0)
    drawn = {
        name: (torch.randn(weight.shape, generator=generator) * weight.std + weight.mean).to(dtype)
        for name, weight in tensors.items()
    }
    save_file(drawn, file)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of model files, each in a dtype that ComfyUI converts as it loads it, or does not."""
    there = tmp_path_factory.mktemp("models")
    for dtype in (FP8, FP16, BF16):
        write(geometry.t5_base(), there / f"t5_{dtype}.safetensors", dtype)
        write(geometry.sd3_tiny(), there / f"sd3_{dtype}.safetensors", dtype)
    write(geometry.vae_16_channels(), there / "vae.safetensors", torch.float32)
    return there


@pytest.fixture
def graph(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Graph:
    import folder_paths

    register()
    for kind in ("text_encoders", "diffusion_models", "vae", "clip_vision", "checkpoints"):
        monkeypatch.setitem(
            folder_paths.folder_names_and_paths, kind, ([str(folder)], {".safetensors", ".pt"})
        )
    folder_paths.filename_list_cache.clear()
    monkeypatch.setattr(folder_paths, "user_directory", str(tmp_path))
    return Graph()


def load(graph: Graph, kind: str, wishes: dict[str, Any] | None = None, **inputs: Any) -> tuple[Any, ...]:
    """Load with our node, everything layerwise unless other wishes are given; returns its outputs."""
    count = 4 if kind == "LoadCheckpoint" else 2
    prompt = {
        "1": node("PlacementPolicy", **(LAYERWISE if wishes is None else wishes)),
        "2": node(kind, policy=["1", 0], **inputs),
        **{str(3 + index): node("Sink", value=["2", index]) for index in range(count)},
    }
    seen = graph.run(prompt)
    order = {type(value).__name__: value for value in seen}
    assert "Placements" in order
    placements = order.pop("Placements")
    return (*order.values(), placements)


def core(kind: str, **inputs: Any) -> Any:
    """Load with ComfyUI's own loader."""
    import nodes

    loader = nodes.NODE_CLASS_MAPPINGS[kind]
    with torch.inference_mode():
        return getattr(loader(), loader.FUNCTION)(**inputs)[0]


def encode(clip: Any) -> torch.Tensor:
    with torch.inference_mode():
        return clip.encode_from_tokens(clip.tokenize("a small boat, at night")).clone()


def denoise(model: Any) -> torch.Tensor:
    """Run one step of the tiny SD3."""
    noise = torch.linspace(-1, 1, 16 * 64).reshape(1, 16, 8, 8)
    with torch.inference_mode():
        mm.load_models_gpu([model])
        return model.model.apply_model(
            noise,
            torch.ones(1),
            c_crossattn=torch.linspace(-1, 1, 3 * 768).reshape(1, 3, 768),
            y=torch.linspace(-1, 1, 768).reshape(1, 768),
        ).clone()


def reconstruct(vae: Any) -> torch.Tensor:
    image = torch.linspace(0, 1, 32 * 32 * 3).reshape(1, 32, 32, 3)
    with torch.inference_mode():
        return vae.decode(vae.encode(image)).clone()


Use = Callable[[Any], torch.Tensor]
DTYPES = (FP8, FP16, BF16)
CLIP, MODEL = ("LoadCLIP", "CLIPLoader"), ("LoadDiffusionModel", "UNETLoader")
CASES = [
    *((*CLIP, {"clip_name": f"t5_{dtype}", "type": "stable_audio"}, encode) for dtype in DTYPES),
    *((*MODEL, {"unet_name": f"sd3_{dtype}", "weight_dtype": "default"}, denoise) for dtype in DTYPES),
    (*MODEL, {"unet_name": f"sd3_{FP16}", "weight_dtype": "fp8_e4m3fn"}, denoise),
    ("LoadVAE", "VAELoader", {"vae_name": "vae"}, reconstruct),
]


def _inputs(inputs: dict[str, str]) -> dict[str, str]:
    return {k: f"{v}.safetensors" if k.endswith("_name") else v for k, v in inputs.items()}


@pytest.mark.parametrize(("ours", "cores", "inputs", "use"), CASES)
@pytest.mark.parametrize("wishes", [LAYERWISE, {}], ids=["layerwise", "auto"])
def test_the_bits_are_those_of_comfyui_s_loader(
    graph: Graph, ours: str, cores: str, inputs: dict[str, str], use: Use, wishes: dict[str, str]
) -> None:
    inputs = _inputs(inputs)
    expected = use(core(cores, **inputs))
    value, _ = load(graph, ours, wishes, **inputs)
    assert torch.equal(use(value), expected)
    assert torch.equal(use(value), expected), "and once more"


@pytest.mark.parametrize("dtype", [FP8, FP16])
def test_layers_rest_in_the_file_even_when_comfyui_converts_them(graph: Graph, dtype: torch.dtype) -> None:
    clip, placements = load(graph, "LoadCLIP", clip_name=f"t5_{dtype}.safetensors", type="stable_audio")
    row = placements.report().rows[0]
    assert (row.applied, row.bytes > 100e6) == ("layerwise", True)
    assert row.tiers["file"] > 0.99 * row.bytes
    encode(clip)
    row = placements.report().rows[0]
    assert row.layer_runs == 12
    assert row.tiers["file"] > 0.99 * row.bytes


@pytest.mark.parametrize("wishes", [{}, {"text_encoder": "resident"}])
def test_what_is_not_read_from_the_file_later_does_not_lie_in_it(
    graph: Graph, folder: Path, wishes: dict[str, str]
) -> None:
    """Who reads the page of a mapped file that was cut off is killed."""
    name = f"t5_{FP8}.safetensors"
    clip, _ = load(graph, "LoadCLIP", wishes, clip_name=name, type="stable_audio")
    gc.collect()
    ranges = mapped_ranges(folder / name)
    inside = [
        n for n, p in clip.cond_stage_model.named_parameters() if any(p.data_ptr() in r for r in ranges)
    ]
    assert inside == []


def test_a_diffusion_model_that_stays_in_memory_is_as_comfyui_loads_it(graph: Graph) -> None:
    inputs = {"unet_name": f"sd3_{FP16}.safetensors", "weight_dtype": "default"}
    expected = core("UNETLoader", **inputs).model
    model = load(graph, "LoadDiffusionModel", {}, **inputs)[0].model
    assert [(n, p.dtype) for n, p in model.named_parameters()] == [
        (n, p.dtype) for n, p in expected.named_parameters()
    ]
    kinds = [
        [f"{type(m).__module__}.{type(m).__qualname__}" for m in each.modules()] for each in (model, expected)
    ]
    assert kinds[0] == kinds[1]


def lora(model: torch.nn.Module, prefix: str = "") -> dict[str, Any]:
    """Return patches for every matrix of a model, as a LoRA's."""
    generator = torch.Generator().manual_seed(1)
    return {
        prefix + name: (torch.randn(p.shape, generator=generator) * 0.01,)
        for name, p in model.named_parameters()
        if p.ndim == 2 and name.endswith(".weight")
    }


@pytest.mark.parametrize(("ours", "cores", "inputs", "use"), CASES[:5:2])
def test_a_lora_gives_the_same_bits_and_can_be_taken_off(
    graph: Graph, ours: str, cores: str, inputs: dict[str, str], use: Use
) -> None:
    inputs = _inputs(inputs)
    value, _ = load(graph, ours, **inputs)
    original = core(cores, **inputs)
    plain = use(original)
    patches = {key: ("diff", patch) for key, patch in lora(models.patcher_of(original).model).items()}
    results = []
    for each in (original, value):
        patched = each.clone()
        added = patched.add_patches(patches, 0.5)
        assert len(added) == len(patches)
        results.append(use(patched))
        del patched
    assert torch.equal(*results)
    assert not torch.equal(results[0], plain)
    assert torch.equal(use(value), plain)


def test_a_pickled_file_is_loaded_as_comfyui_does_and_the_report_says_so(graph: Graph, folder: Path) -> None:
    from safetensors.torch import load_file

    torch.save(load_file(folder / f"t5_{FP16}.safetensors"), folder / "t5.pt")
    inputs = {"clip_name": "t5.pt", "type": "stable_audio"}
    expected = encode(core("CLIPLoader", **inputs))
    clip, placements = load(graph, "LoadCLIP", **inputs)
    assert torch.equal(encode(clip), expected)
    assert "t5.pt was loaded into memory, because only safetensors files" in placements.report().text()


def test_without_mmap_weights_are_loaded_into_memory_and_the_report_says_so(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    import comfy.utils
    from comfy.cli_args import args

    monkeypatch.setattr(args, "disable_mmap", True)
    monkeypatch.setattr(comfy.utils, "DISABLE_MMAP", True)
    clip, placements = load(graph, "LoadCLIP", clip_name=f"t5_{FP16}.safetensors", type="stable_audio")
    assert {p.dtype for p in clip.cond_stage_model.t5base.transformer.encoder.block.parameters()} == {FP16}
    assert "because --disable-mmap lets no weights be read" in placements.report().text()


def test_the_widgets_are_those_of_comfyui_s_loaders(graph: Graph) -> None:
    import nodes

    for ours, cores in (
        ("LoadCLIP", "CLIPLoader"),
        ("LoadDualCLIP", "DualCLIPLoader"),
        ("LoadVAE", "VAELoader"),
        ("LoadCLIPVision", "CLIPVisionLoader"),
        ("LoadDiffusionModel", "UNETLoader"),
        ("LoadCheckpoint", "CheckpointLoaderSimple"),
    ):
        there, here = (nodes.NODE_CLASS_MAPPINGS[name] for name in (cores, f"LayerwiseOffload_{ours}"))
        wanted, given = there.INPUT_TYPES(), here.INPUT_TYPES()
        for part in ("required", "optional"):
            for name, (words, *_) in wanted.get(part, {}).items():
                kind, options = given[part][name]
                assert (kind, options["options"]) == ("COMBO", words)
        assert tuple(here.RETURN_TYPES) == (*there.RETURN_TYPES, "LAYERWISE_PLACEMENTS")


def test_loaders_in_a_chain_share_a_report(graph: Graph) -> None:
    encoder = {"clip_name": f"t5_{FP8}.safetensors", "type": "stable_audio"}
    prompt = {
        "1": node("LoadCLIP", **encoder),
        "2": node(
            "LoadDiffusionModel",
            placements=["1", 1],
            unet_name=f"sd3_{FP16}.safetensors",
            weight_dtype="default",
        ),
        "3": node("LoadCLIP", placements=["2", 1], **encoder),
        "4": node("Sink", value=["3", 1]),
    }
    placements = graph.run(prompt)[0]
    assert placements.names == {"text_encoder", "diffusion_model", "text_encoder_2"}


@pytest.mark.parametrize("dtype", [FP8, FP16])
def test_loading_copies_nothing_into_memory(graph: Graph, dtype: torch.dtype) -> None:
    inputs = {"clip_name": f"t5_{dtype}.safetensors", "type": "stable_audio"}
    load(graph, "LoadCLIP", **inputs)  # what is imported and made once
    graph.run({})
    gc.collect()
    before = anonymous()
    with PeakMemory(os.getpid()) as peak:
        clip, _ = load(graph, "LoadCLIP", **inputs)
    assert peak.whole.anonymous is not None
    assert peak.whole.anonymous - before < 60e6, f"{clip} has 110 million weights"


@pytest.mark.parametrize("host", ["mapped", "staged"])
@pytest.mark.parametrize(("ours", "cores", "inputs", "use"), CASES[:4:3])
def test_on_a_card_layers_are_copied_in_the_dtype_of_the_file(
    gpu: Any, graph: Graph, host: str, ours: str, cores: str, inputs: dict[str, str], use: Use
) -> None:
    inputs, kind = _inputs(inputs), ours.removeprefix("Load").removeprefix("Diffusion").lower()
    slot = ("model", "clip").index(kind)
    plain = use(core(cores, **inputs))
    prompt = {
        "1": node("PlacementPolicy", **LAYERWISE),
        "2": node("SetPlacement", base=["1", 0], component="all", host=host),
        "3": {"class_type": cores, "inputs": inputs},
        "4": node("Loader", policy=["2", 0], **{kind: ["3", 0]}),
        "5": node(ours, policy=["2", 0], **inputs),
        "6": node("Sink", value=["4", slot]),
        "7": node("Sink", value=["5", 0]),
        "8": node("Sink", value=["5", 1]),
    }
    *both, placements = sorted(graph.run(prompt), key=lambda seen: hasattr(seen, "report"))
    row = placements.report().rows[0]
    assert (row.applied, row.host) == ("layerwise", host)
    for value in both:
        assert torch.equal(use(value), plain)
    assert placements.report().rows[0].moved_bytes > 0
    patches = {key: ("diff", patch) for key, patch in lora(models.patcher_of(both[0]).model).items()}
    results = []
    for (
        value
    ) in both:  # a patch on a layer that streams is not rounded, as one on a layer that ComfyUI offloads
        patched = value.clone()
        patched.add_patches(patches, 0.5)
        results.append(use(patched))
        del patched
    assert torch.equal(*results)
    assert not torch.equal(results[0], plain)
    assert torch.equal(use(both[1]), plain)


def written(folder: Path, name: str) -> str:
    """Write one of the demo models, and return its file's name."""
    model = next(model for model in demo_models.MODELS if name in model.file)
    demo_models.write(model, folder / Path(model.file).name)
    return Path(model.file).name


def test_a_clip_vision_gives_the_same_bits_out_of_its_file(graph: Graph, folder: Path) -> None:
    name = written(folder, "demo_clip_vit_l")
    expected = models.look(core("CLIPVisionLoader", clip_name=name))
    vision, placements = load(graph, "LoadCLIPVision", clip_name=name)
    assert torch.equal(models.look(vision), expected)
    row = placements.report().rows[0]
    assert (row.component, row.applied) == ("image_encoder", "layerwise")
    assert row.tiers["file"] > 0.9 * row.bytes


def test_a_checkpoint_gives_all_that_comfyui_s_loader_gives(graph: Graph, folder: Path) -> None:
    import nodes

    name = written(folder, "demo_ltxv_tiny")
    with torch.inference_mode():
        model, clip, vae = nodes.NODE_CLASS_MAPPINGS["CheckpointLoaderSimple"]().load_checkpoint(name)
    prompt = {
        "1": node("PlacementPolicy", **LAYERWISE),
        "2": node("LoadCheckpoint", ckpt_name=name, policy=["1", 0]),
    }
    prompt |= {str(3 + index): node("Sink", value=["2", index]) for index in range(4)}
    seen = graph.run(prompt)
    kinds = sorted(type(value).__name__ for value in (model, clip, vae))
    assert sorted(type(value).__name__ for value in seen if not hasattr(value, "report")) == kinds
    ours = next(value for value in seen if isinstance(value, type(vae)))
    latent = torch.linspace(-1, 1, 128 * 4).reshape(1, 128, 1, 2, 2)
    with torch.inference_mode():
        assert torch.equal(ours.decode(latent), vae.decode(latent))
    placements = next(value for value in seen if hasattr(value, "report"))
    assert {"diffusion_model"} < placements.names


def test_a_report_behind_such_a_loader_tells_what_came_of_its_policy(graph: Graph) -> None:
    prompt = {
        "1": node("PlacementPolicy", **LAYERWISE),
        "2": node("LoadVAE", vae_name="vae.safetensors", policy=["1", 0]),
        "3": node("PlacementReport", placements=["2", 1]),
    }
    graph.run(prompt)
    assert list(graph.ui("3")["placement_decisions"][0]["policy_nodes"]) == ["1"]
