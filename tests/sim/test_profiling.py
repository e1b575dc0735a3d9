"""torch's profiler beside the engine on the simulated card: copies by the name of their layer."""

from __future__ import annotations

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from offload_runtime.engine.profiling import PREFIX

from . import Accelerator
from .test_engine import FORWARD, Model, stream


@pytest.mark.parametrize("pinned", [True, False], ids=["pinned", "pageable"])
def test_a_profile_shows_every_copy_by_its_layer(sim: Accelerator, pinned: bool) -> None:
    """Copies from pageable memory are made by another thread, which a profiler does not record by itself."""
    model, x = Model([256] * 6), torch.randn(3, 64)
    expected = model.run(x, FORWARD)
    _kept = stream(sim, model, pinned=pinned)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        out = model.run(x.to(sim.device), FORWARD)
    assert torch.equal(out.cpu(), expected)
    keys = {event.key for event in seen.key_averages()}
    assert {f"{PREFIX}: ask for blocks.{i}" for i in FORWARD} <= keys
    assert not pinned or {f"{PREFIX}: copy blocks.{i}" for i in FORWARD} <= keys


def test_a_profile_of_all_threads_shows_the_copies_in_the_background(sim: Accelerator) -> None:
    model, x = Model([256] * 6), torch.randn(3, 64).to(sim.device)
    _kept = stream(sim, model, pinned=False)
    everywhere = torch.profiler._ExperimentalConfig(profile_all_threads=True)
    with profile(activities=[ProfilerActivity.CPU], experimental_config=everywhere) as seen:
        model.run(x, FORWARD)
        sim.synchronize()
    keys = {event.key for event in seen.key_averages()}
    assert {f"{PREFIX}: copy blocks.{i}" for i in FORWARD} <= keys
