"""Where a component's file is found, and what is said where it is of no use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import comfy.sd
import models
import pytest
import torch
from graphs import Graph, Prompt, node, register
from placing import PlacedObject, policy
from safetensors.torch import save_file

from offload_runtime.adapter.weight_files import Prompt as Whole
from offload_runtime.adapter.weight_files import candidate_files

FILE = "encoder.safetensors"


class LoadEncoder:
    """A loader: its encoder has the weights of the file that it names."""

    RETURN_TYPES = ("CLIP",)
    FUNCTION = "run"
    CATEGORY = "test"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"clip_name": ("STRING",)}}

    def run(self, clip_name: str) -> tuple[comfy.sd.CLIP]:
        return (models.clip(),)


class Preset:
    """A loader that expands into another one, whose file it alone knows."""

    RETURN_TYPES = ("CLIP",)
    FUNCTION = "run"
    CATEGORY = "test"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"preset": ("STRING",)}}

    def run(self, preset: str) -> dict[str, Any]:
        from comfy_execution.graph_utils import GraphBuilder

        graph = GraphBuilder()
        return {"result": (graph.node("LoadEncoder", clip_name=FILE).out(0),), "expand": graph.finalize()}


class Body:
    """A node that expands into our loader, and hands it the object that it has; a loop does so once a round."""

    RETURN_TYPES = ("LAYERWISE_PLACEMENTS",)
    FUNCTION = "run"
    CATEGORY = "test"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"clip": ("CLIP",), "policy": ("*",), "rounds": ("INT",)}}

    def run(self, clip: Any, policy: Any, rounds: int) -> dict[str, Any]:
        from comfy_execution.graph_utils import GraphBuilder

        graph = GraphBuilder()
        if rounds > 1:
            last = graph.node("Body", clip=clip, policy=policy, rounds=rounds - 1).out(0)
        else:
            last = graph.node("LayerwiseOffload_Loader", clip=clip, policy=policy).out(4)
        return {"result": (last,), "expand": graph.finalize()}


@pytest.fixture
def graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Graph:
    import folder_paths

    import nodes as core

    register()
    for kind in (LoadEncoder, Preset, Body):
        monkeypatch.setitem(core.NODE_CLASS_MAPPINGS, kind.__name__, kind)
    monkeypatch.setitem(
        folder_paths.folder_names_and_paths, "text_encoders", ([str(tmp_path)], {".safetensors"})
    )
    monkeypatch.setattr(folder_paths, "user_directory", str(tmp_path))
    models.save(models.clip().patcher.model, tmp_path / FILE)
    return Graph()


def _prompt(loader: dict[str, Any], *, rounds: int = 0, placement: str = "layerwise") -> Prompt:
    """Place what the loader gives, by our node itself or by nodes that expand into it."""
    given = {"clip": ["1", 0], "policy": ["2", 0]}
    ours = node("Loader", **given)
    if rounds:
        ours = {"class_type": "Body", "inputs": {**given, "rounds": rounds}}
    return {
        "1": loader,
        "2": node("PlacementPolicy", text_encoder=placement),
        "3": ours,
        "sink": node("Sink", value=["3", 0 if rounds else 4]),
    }


PLAIN = {"class_type": "LoadEncoder", "inputs": {"clip_name": FILE}}
PRESET = {"class_type": "Preset", "inputs": {"preset": "small"}}


@pytest.mark.parametrize("loader", [PLAIN, PRESET], ids=["a loader", "an expanding loader"])
@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_the_file_is_found(graph: Graph, loader: dict[str, Any], rounds: int) -> None:
    (placements,) = graph.run(_prompt(loader, rounds=rounds))
    row = placements.report().rows[-1]
    assert row.applied == "layerwise", row.how
    assert row.tiers["file"] > 0


def test_what_an_expanding_loader_said_is_known_when_its_outputs_come_from_the_cache(graph: Graph) -> None:
    graph.run(_prompt(PRESET, placement="resident"))
    (placements,) = graph.run(_prompt(PRESET))
    assert placements.report().rows[-1].applied == "layerwise"


def test_the_file_that_comfyui_would_load_it_from_again_is_known_without_a_prompt(tmp_path: Path) -> None:
    clip = models.clip()
    file = models.save(clip.patcher.model, tmp_path / FILE)
    clip.patcher.cached_patcher_init = (comfy.sd.load_clip, ([str(file)], None, "sd", {}))
    assert candidate_files(Whole({}), "1", "clip", clip) == [file]
    assert candidate_files(Whole({}), "1", "clip", clip.clone()) == [file]


def _why(tmp_path: Path, *files: Path, placed: Callable[[], Any] = models.clip) -> str:
    row = PlacedObject("clip", placed(), policy("layerwise"), list(files)).row
    assert row.tiers.get("file", 0) == 0
    assert row.applied == "resident"
    return row.why


def _file_of(model: torch.nn.Module, path: Path, dtype: torch.dtype) -> Path:
    save_file({name: p.detach().to(dtype) for name, p in model.named_parameters()}, path)
    return path


@pytest.fixture
def started_with(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    from comfy.cli_args import args

    def start(flag: str) -> None:
        monkeypatch.setattr(args, flag.removeprefix("--").replace("-", "_"), True)

    return start


def test_without_a_file_the_workflow_is_said_to_name_none(tmp_path: Path) -> None:
    assert "the workflow names no file" in _why(tmp_path)


def test_a_file_of_another_format_is_named_with_what_is_wrong_with_it(tmp_path: Path) -> None:
    quantised, old = tmp_path / "t5-Q4_K_M.gguf", tmp_path / "encoder.ckpt"
    quantised.write_bytes(b"GGUF" + bytes(100))
    old.write_bytes(b"PK\x03\x04" + bytes(100))
    assert "its file t5-Q4_K_M.gguf stores other bytes than the model uses" in _why(tmp_path, quantised)
    said = _why(tmp_path, old)
    assert "only a safetensors file can be read layer by layer" in said
    assert "encoder.ckpt" in said


@pytest.mark.parametrize("flag", ["", "--fp16-text-enc", "--force-fp16"])
def test_a_file_of_another_dtype_is_named_with_the_flag_that_asked_for_it(
    tmp_path: Path, flag: str, started_with: Callable[[str], None]
) -> None:
    if flag:
        started_with(flag)
    file = _file_of(models.clip().patcher.model, tmp_path / FILE, torch.bfloat16)
    who = f"{flag} makes it" if flag else "ComfyUI uses"
    assert f"its file {FILE} stores bfloat16, and {who} float16" in _why(tmp_path, file)


def test_a_conversion_that_rounds_nothing_is_not_what_is_wrong_with_a_file(tmp_path: Path) -> None:
    file = _file_of(models.clip(number=9).patcher.model, tmp_path / FILE, torch.float8_e4m3fn)
    assert f"no file that the workflow names ({FILE}) holds the same weights" in _why(tmp_path, file)


def test_a_flag_that_is_not_the_cause_is_not_named(
    tmp_path: Path, started_with: Callable[[str], None]
) -> None:
    started_with("--fp8_e4m3fn-text-enc")
    other = models.save(models.clip(number=9).patcher.model, tmp_path / FILE)
    said = _why(tmp_path, other)
    assert "fp8" not in said
    assert f"no file that the workflow names ({FILE}) holds the same weights" in said


def test_nothing_rests_in_a_file_where_comfyui_was_started_not_to_map_any(
    tmp_path: Path, started_with: Callable[[str], None]
) -> None:
    started_with("--disable-mmap")
    value = models.clip()
    file = models.save(value.patcher.model, tmp_path / FILE)
    placed = PlacedObject("clip", value, policy("layerwise"), [file])
    assert placed.row.tiers.get("file", 0) == 0
    assert placed.row.applied == "resident"
    assert "--disable-mmap" in placed.row.why
    if Path("/proc/self/maps").exists():
        assert str(file) not in Path("/proc/self/maps").read_text()
