"""The engine with look-ahead off: the CPU's numbers, one layer at a time, and no copy beside a computation."""

from __future__ import annotations

import pytest
import torch

from . import Accelerator
from .test_engine import FORWARD, KIB, ORDERS, Model, stream
from .test_engine import packed as slot_size
from .test_engine_hazards import Caller

MIXED = [64, 512, 128, 1024, 32, 256]


@pytest.mark.parametrize("pinned", [True, False], ids=["pinned", "pageable"])
@pytest.mark.parametrize("budget", [None, 300 * KIB], ids=["whole", "parts"])
@pytest.mark.parametrize("order", ORDERS)
def test_any_order_gives_the_same_numbers_and_nothing_overlaps(
    sim: Accelerator, order: str, budget: int | None, pinned: bool
) -> None:
    model, x = Model(MIXED), torch.randn(3, 64)
    expected, there = model.run(x, ORDERS[order]), x.to(sim.device)
    streamer, ledger = stream(sim, model, pinned=pinned, budget=budget, parts=True, look_ahead=False)
    for _ in range(3):
        with sim.measure() as m:
            got = model.run(there, ORDERS[order])
        assert torch.equal(got.cpu(), expected)
        assert m.overlap_ms == 0
        streamer.install()
    whole = max(map(slot_size, model.blocks))
    assert ledger.slot_peak <= min(whole, budget or whole)


def test_nothing_is_copied_before_it_is_asked_for(sim: Accelerator) -> None:
    model, x = Model(MIXED), torch.randn(3, 64).to(sim.device)
    streamer, ledger = stream(sim, model, look_ahead=False)
    model.run(x, FORWARD)
    streamer.install()
    for block in model.blocks:
        before = ledger.moved["memory"]
        x = block(x)
        assert ledger.moved["memory"] - before == sum(p.nbytes for p in block.parameters())


def test_the_smallest_budget_that_is_promised_is_kept(sim: Accelerator) -> None:
    """Without room for the next layer, fewer layers have to be split; never is more taken than with it."""
    for budget in (None, 64 * KIB, 300 * KIB, 600 * KIB):
        model = Model(MIXED)
        ahead, _ = stream(sim, model, budget=budget, parts=True)
        waits, _ = stream(sim, model, budget=budget, parts=True, look_ahead=False)
        assert waits.footprint <= ahead.footprint


def test_a_layer_that_calls_another_comes_back(sim: Accelerator) -> None:
    model, x = Model([512, 64, 64], width=256), torch.randn(4, 256)
    caller = Caller(256, 512).requires_grad_(False)
    object.__setattr__(caller, "called", model.blocks[1])
    model.blocks[0] = caller
    expected, there = model.run(x, [0, 2]), x.to(sim.device)
    streamer, _ = stream(sim, model, look_ahead=False)
    for _ in range(3):
        with sim.measure() as m:
            got = model.run(there, [0, 2])
        assert torch.equal(got.cpu(), expected)
        assert m.overlap_ms == 0
        streamer.install()
