"""The pack as ComfyUI loads it: from a folder with a hyphen, light, and without touching core."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("__init__.py", "nodes", "offload_runtime", "web")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("custom_nodes") / "layerwise-offload"
    folder.mkdir()
    for part in PARTS:
        copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
        copy(ROOT / part, folder / part)
    return folder


@pytest.fixture(scope="module")
def pack(folder: Path) -> ModuleType:
    """Load the pack as core's loader does: under its path, with dots made harmless."""
    name = str(folder).replace(".", "_x_")
    spec = importlib.util.spec_from_file_location(name, folder / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def nodes(pack: ModuleType) -> dict[str, Any]:
    async def collect() -> list[Any]:
        return await (await pack.comfy_entrypoint()).get_node_list()

    return {node.GET_SCHEMA().node_id: node for node in asyncio.run(collect())}


def test_the_entry_point_gives_the_nodes_under_their_frozen_ids(nodes: dict[str, Any]) -> None:
    assert {
        "LayerwiseOffload_PlacementPolicy",
        "LayerwiseOffload_Loader",
        "LayerwiseOffload_PlacementReport",
    } <= set(nodes)


def test_no_v1_mapping_shadows_the_entry_point(pack: ModuleType) -> None:
    """With NODE_CLASS_MAPPINGS the loader would ignore `comfy_entrypoint`."""
    assert not hasattr(pack, "NODE_CLASS_MAPPINGS")
    assert pack.WEB_DIRECTORY == "./web"


def test_every_input_and_output_has_a_tooltip_and_every_node_a_help_page(nodes: dict[str, Any]) -> None:
    for node_id, node in nodes.items():
        schema = node.GET_SCHEMA()
        assert node_id.startswith("LayerwiseOffload_")
        assert schema.category == "advanced/offload"
        assert schema.description
        assert all(part.tooltip for part in (*schema.inputs, *schema.outputs)), node_id
        assert (ROOT / "web" / "docs" / f"{node_id}.md").is_file(), node_id


def test_every_widget_may_be_absent_and_starts_at_auto(nodes: dict[str, Any]) -> None:
    """An API client that leaves a key out means `auto`."""
    for widget in nodes["LayerwiseOffload_PlacementPolicy"].GET_SCHEMA().inputs:
        assert widget.optional, widget.id
        assert getattr(widget, "default", "auto") == "auto", widget.id


def test_importing_and_entering_changes_no_core_function_and_starts_nothing(folder: Path) -> None:
    result = _in_a_fresh_comfyui(
        f"""
        import threading, types
        import comfy.model_patcher, comfy.model_management, comfy.ops, comfy.sd, comfy.clip_vision, torch

        def functions():
            owners = [comfy.model_patcher, comfy.model_management, comfy.ops, comfy.sd, comfy.clip_vision,
                      comfy.model_patcher.ModelPatcher, comfy.sd.CLIP, comfy.sd.VAE,
                      torch, torch.nn.Module, torch.Tensor, torch.cuda]
            return {{(str(o), n): v for o in owners for n, v in vars(o).items() if callable(v)}}

        before, threads = functions(), set(threading.enumerate())
        asyncio.run(enter(load({str(folder)!r})))
        after = functions()
        print(json.dumps({{
            "changed": [str(k) for k in before if after.get(k) is not before[k]],
            "threads": len(set(threading.enumerate()) - threads),
            "cuda": torch.cuda.is_initialized(),
        }}))
        """
    )
    assert result == {"changed": [], "threads": 0, "cuda": False}


def test_importing_and_entering_takes_under_50_ms_beyond_what_comfyui_has_loaded(
    folder: Path, tmp_path: Path
) -> None:
    # What every start but the first costs: with the byte code that Python keeps, whatever it may keep here.
    code = f"""
        import comfy.sd, comfy.utils, comfy_api.latest, folder_paths, psutil
        sys.dont_write_bytecode, sys.pycache_prefix = False, {str(tmp_path)!r}
        start = time.process_time()
        asyncio.run(enter(load({str(folder)!r})))
        print(json.dumps(time.process_time() - start))
        """
    assert min(_in_a_fresh_comfyui(code) for _ in range(3)) < 0.05


def test_importing_the_root_alone_needs_neither_torch_nor_comfyui(folder: Path) -> None:
    code = (
        f"import sys, importlib.util as u; sys.path.insert(0, {str(folder.parent)!r}); before = set(sys.modules);"
        + (
            f"s = u.spec_from_file_location('pack', {str(folder / '__init__.py')!r}); m = u.module_from_spec(s);"
            "s.loader.exec_module(m); print(sorted(n for n in set(sys.modules) - before if '.' not in n))"
        )
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "torch" not in loaded
    assert "comfy" not in loaded


_PRELUDE = """
import asyncio, importlib.util, json, os, sys, time
sys.path.insert(0, os.environ["COMFYUI_PATH"])
import comfy.cli_args
comfy.cli_args.args.cpu = True

def load(folder):
    name = folder.replace(".", "_x_")
    spec = importlib.util.spec_from_file_location(name, folder + "/__init__.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module

async def enter(pack):
    return await (await pack.comfy_entrypoint()).get_node_list()
"""


def _in_a_fresh_comfyui(code: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", _PRELUDE + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        env=os.environ,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
