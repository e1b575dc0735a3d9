"""Real samplers and VAEs that run out of memory: heard of without touching ComfyUI, and given room the next time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import comfy.model_management as mm
import folder_paths
import models
import pytest
import torch
from test_demand import sample

from offload_runtime.adapter import Placements, apply_policy, learning
from offload_runtime.policy import Policy, Source, SourceKind

GB = 1 << 30
CARD = 16 * GB


@pytest.fixture(autouse=True)
def card(gpu: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A card of 16 GB, and a user folder in which is learnt."""
    gpu.total = CARD
    monkeypatch.setenv(learning.VARIABLE, "on")
    monkeypatch.setattr(folder_paths, "user_directory", str(tmp_path))
    with torch.inference_mode():  # as ComfyUI's executor runs every node
        yield tmp_path / "layerwise_offload" / "learned" / "runs.json"
    learning._stores.clear()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What ComfyUI was asked for beside the weights, load by load."""
    loads: list[float] = []
    load = mm.load_models_gpu

    def noting(loaded: Any, memory_required: float = 0, **kwargs: Any) -> Any:
        loads.append(memory_required)
        return load(loaded, memory_required=memory_required, **kwargs)

    monkeypatch.setattr(mm, "load_models_gpu", noting)
    return loads


@contextmanager
def no_memory_in(module: torch.nn.Module) -> Iterator[None]:
    """Let the first call of a module run out of memory."""

    def fails(*_: Any) -> None:
        hook.remove()
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB. GPU 0 has a total of …")

    hook = module.register_forward_pre_hook(fails)
    try:
        yield
    finally:
        hook.remove()


def place(slot: str, value: Any, placement: str = "auto") -> tuple[Any, Placements]:
    policy = Policy.from_widgets(
        Source(SourceKind.NODE, "Placement Policy, node 1"), placements={"dit": placement, "vae": placement}
    )
    out, placements = apply_policy(policy, {slot: value}, {}, Placements())
    return out[slot], placements


@pytest.mark.parametrize(("placement", "extra"), [("auto", 3 * GB), ("resident", 0)])
def test_a_sampler_that_ran_out_asks_for_more_unless_somebody_placed_it(
    asked: list[float], placement: str, extra: int
) -> None:
    model, placements = place("model", models.diffusion_model(), placement)
    plain = sample(model)
    with no_memory_in(model.model.diffusion_model), pytest.raises(torch.OutOfMemoryError):
        sample(model)
    before = asked[-1]
    assert torch.equal(sample(model), plain)
    assert asked[-1] - before == pytest.approx(extra, rel=0.01)
    assert "diffusion_model ran out of memory" in placements.report().notes[0]


@pytest.mark.parametrize("kind", ["decode", "encode"])
def test_a_vae_whose_attempt_comfyui_repeats_in_tiles_asks_for_more(asked: list[float], kind: str) -> None:
    vae, placements = place("vae", models.vae())
    vae.upscale_ratio = vae.downscale_ratio = 4  # ComfyUI expects 8 of all of its class, which tiles rely on
    use, given = {
        "decode": (vae.decode, torch.linspace(-1, 1, 4 * 64).reshape(1, 4, 8, 8)),
        "encode": (vae.encode, models.IMAGE),
    }[kind]
    use(given)
    before = asked[-1]
    inside = vae.first_stage_model.decoder if kind == "decode" else vae.first_stage_model.encoder
    with no_memory_in(inside):
        use(given)  # in tiles
    use(given)
    assert asked[-1] - before == pytest.approx(3 * GB, rel=0.01)
    assert "vae ran out of memory" in placements.report().notes[0]


def test_a_restart_knows_of_it_and_another_model_does_not(asked: list[float], card: Path) -> None:
    model, _ = place("model", models.diffusion_model())
    with no_memory_in(model.model.diffusion_model), pytest.raises(torch.OutOfMemoryError):
        sample(model)
    plain = asked[-1]
    del model
    learning._stores.clear()
    assert card.is_file()
    model, _ = place("model", models.diffusion_model(number=7))
    sample(model)
    assert asked[-1] - plain == pytest.approx(3 * GB, rel=0.01), (
        "weights of the same shapes are the same model"
    )
    card.unlink()
    learning._stores.clear()
    model, _ = place("model", models.diffusion_model())
    sample(model)
    assert asked[-1] == plain


def test_what_the_last_run_taught_is_kept_when_comfyui_ends(
    card: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_exit: list[Any] = []
    monkeypatch.setattr("atexit.register", at_exit.append)
    learning._at_exit.cache_clear()
    model, _ = place("model", models.diffusion_model())
    sample(model)
    assert not card.exists()
    (end,) = at_exit
    end()
    (lesson,) = learning.store().read().models.values()
    assert lesson.demands
    assert not lesson.times, "nothing is asked of a device that may be gone"
    learning._at_exit.cache_clear()


def test_another_error_is_none_of_it(asked: list[float], card: Path) -> None:
    model, placements = place("model", models.diffusion_model())
    hook = model.model.diffusion_model.register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        sample(model)
    hook.remove()
    assert not placements.report().notes
    assert not card.exists() or not learning.store().read().margins
