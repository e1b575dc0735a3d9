"""What ComfyUI asks for beside the weights is noted when it samples and decodes, and counts when a plan is made."""

from __future__ import annotations

import functools
from typing import Any

import comfy.model_management as mm
import comfy.sample
import comfy.sampler_helpers as sampler_helpers
import models
import pytest
import torch
from placing import place, policy

from offload_runtime.adapter.record import USES, record_of

CONTEXT = [
    [torch.linspace(-1, 1, 24).reshape(1, 3, 8), {"pooled_output": torch.linspace(-1, 1, 16).reshape(1, 16)}]
]


def sample(model: Any, size: int = 8) -> torch.Tensor:
    """One step of a sampler."""
    latent = torch.linspace(-1, 1, 16 * size * size).reshape(1, 16, size, size)
    result: torch.Tensor = comfy.sample.sample(
        model,
        latent,
        1,
        1.0,
        "euler",
        "simple",
        CONTEXT,
        CONTEXT,
        torch.zeros_like(latent),
        disable_pbar=True,
    )
    return result


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What ComfyUI has estimated, sampling by sampling; whoever asks a second time is not counted."""
    estimates: list[int] = []
    estimate = sampler_helpers.estimate_memory

    @functools.wraps(estimate)
    def noting(model: Any, *args: Any, **kwargs: Any) -> Any:
        both = estimate(model, *args, **kwargs)
        estimates.append(int(both[0]))
        return both

    monkeypatch.setattr(sampler_helpers, "estimate_memory", noting)
    return estimates


@pytest.mark.parametrize("wish", ["layerwise", "resident", "auto"])
@pytest.mark.parametrize("cloned", [False, True], ids=["as it is", "a clone of it"])
def test_a_sampling_is_noted_whatever_the_placement(wish: str, cloned: bool, asked: list[int]) -> None:
    placed = place(models.FAMILIES["model"], models.diffusion_model(), policy(wish))
    plain = sample(models.diffusion_model())
    del asked[:]
    model = placed.value.clone() if cloned else placed.value
    assert torch.equal(sample(model), plain)
    assert record_of(model.model).demand == asked[0] > 0
    sample(model, size=16)
    assert record_of(model.model).demand == max(asked)
    for _ in range(USES):
        sample(model)
    assert record_of(model.model).demand == asked[0], "the large one is forgotten in time"


def test_a_model_of_two_loaders_is_noted_once_and_the_input_never(asked: list[int]) -> None:
    loaded = models.diffusion_model()
    family = models.FAMILIES["model"]
    twice = place(family, place(family, loaded, policy("layerwise")).value, policy("auto")).value
    sample(twice)
    assert record_of(loaded.model)._demands == type(record_of(loaded.model)._demands)([asked[0]])
    sample(loaded)
    assert len(record_of(loaded.model)._demands) == 1


def test_a_decode_is_noted_and_the_next_plan_knows_it() -> None:
    family, value = models.FAMILIES["vae"], models.vae()
    placed = place(family, value, policy("auto"))
    assert placed.placements.placed[0].facts.activation_bytes == 0
    with torch.inference_mode():
        placed.value.decode(torch.zeros(1, 4, 16, 16))
    needs = int(value.memory_used_decode((1, 4, 16, 16), value.vae_dtype))
    again = place(family, value, policy("auto"))
    assert again.placements.placed[0].facts.activation_bytes == needs > 0
    mm.unload_all_models()
