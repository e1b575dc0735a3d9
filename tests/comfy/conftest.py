"""Real ComfyUI in this process, on the CPU. One tree per run: `COMFYUI_PATH`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]


def _import_comfyui() -> None:
    tree = os.environ.get("COMFYUI_PATH", "")
    if not Path(tree, "comfy", "model_management.py").is_file():
        pytest.exit(
            f"COMFYUI_PATH is “{tree}”, which is no ComfyUI tree; run `make test`, which sets it",
            returncode=4,
        )
    sys.path.insert(0, tree)  # first: ComfyUI's own nodes.py must win over our package of that name
    import comfy.cli_args

    comfy.cli_args.args.cpu = True
    import comfy.sd

    import nodes  # noqa: F401 — before pytest puts our root in front, where its name is no identifier


_import_comfyui()
torch.set_num_threads(1)  # the models are tiny: more threads only wait for each other


@pytest.fixture(params=["model", "clip", "t5", "vae", "clip_vision"])
def family(request: pytest.FixtureRequest) -> Any:
    """Every kind of component in turn."""
    import models

    return models.FAMILIES[request.param]


@pytest.fixture(autouse=True)
def _nothing_loaded() -> Iterator[None]:
    """Every test starts and ends with nothing loaded."""
    _unload()
    yield
    _unload()


def _unload() -> None:
    """Unload everything, on whatever device; ComfyUI's own "unload all" leaves out what is loaded on the CPU."""
    import comfy.model_management as mm

    mm.unload_all_models()
    for device in {loaded.device for loaded in mm.current_loaded_models}:
        mm.free_memory(1e30, device)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Let ComfyUI believe in a second device of limited memory: `cpu:0`, whose tensors are ordinary ones.

    Enough to run core's low-VRAM logic and to see what is where by `tensor.device`; what a kernel would refuse
    (mixed devices, unfinished copies) it cannot see.
    """
    import comfy.model_management as mm

    device = torch.device("cpu", 0)
    state = SimpleNamespace(device=device, total=1 << 40, used=lambda: 0)
    is_cpu = mm.is_device_cpu

    def free(dev: torch.device | None = None, torch_free_too: bool = False) -> object:
        amount = state.total - state.used() if dev is None or dev.index == 0 else 1 << 40
        return (amount, 0) if torch_free_too else amount

    monkeypatch.setattr(mm, "is_device_cpu", lambda dev: is_cpu(dev) and dev.index != 0)
    monkeypatch.setattr(mm, "vram_state", mm.VRAMState.NORMAL_VRAM)
    monkeypatch.setattr(mm, "get_torch_device", lambda: device)
    monkeypatch.setattr(mm, "text_encoder_device", lambda: device)
    monkeypatch.setattr(mm, "vae_device", lambda: device)
    monkeypatch.setattr(mm, "get_free_memory", free)
    monkeypatch.setattr(mm, "get_total_memory", lambda dev=None, torch_total_too=False: state.total)
    monkeypatch.setattr(mm, "minimum_inference_memory", lambda: 0)
    monkeypatch.setattr(mm, "EXTRA_RESERVED_VRAM", 0)
    return state


@pytest.fixture(scope="module")
def pack() -> Any:
    """The pack's nodes, as ComfyUI loads them."""
    from graphs import register

    return register()


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty user directory; returns the folder of its policy files."""
    import folder_paths

    monkeypatch.setattr(folder_paths, "user_directory", str(tmp_path))
    return tmp_path / "layerwise_offload"


@pytest.fixture
def graph(pack: Any, user: Path) -> Any:
    """An executor for prompts with them."""
    from graphs import Graph

    return Graph()
