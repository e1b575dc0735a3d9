"""The engine on the simulated card where memory changes hands: at loads and frees, and where layers call layers."""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn

from offload_runtime.engine import Lane, Layer, Ledger, MemoryTier, PackedWeights, Stack, Streamer

from . import Accelerator
from .runtime import active
from .test_engine import FORWARD, Block, Model, stream
from .test_engine import packed as slot_size


def test_slots_in_memory_that_compute_still_reads_wait_for_it(sim: Accelerator) -> None:
    """The allocator gives out again what a large activation has just left, while its kernels run."""
    model, x = Model([256] * 6), torch.randn(3, 64)
    expected, there = model.run(x, FORWARD), x.to(sim.device)
    streamer, _ = stream(sim, model)
    size = streamer.slot_bytes
    streamer.free()
    activation = torch.ones(size // 4, device=sim.device)
    total = torch.stack([activation.mul(n).sum() for n in range(200)]).sum()
    del activation
    assert torch.equal(model.run(there, FORWARD).cpu(), expected)
    assert total.item() == sum(range(200)) * (size // 4)


def test_masters_may_be_written_between_two_uses(sim: Accelerator) -> None:
    """What was on its way ahead when the use ended reads them no more."""
    model, x = Model([4096] * 6, width=256), torch.randn(64, 256).to(sim.device)
    streamer, _ = stream(sim, model)
    model.run(x, FORWARD)
    streamer.install()
    model.run(x, [0, 1])
    streamer.install()
    for parameter in model.parameters():
        parameter.data.zero_()
    assert torch.equal(model.run(x, FORWARD).cpu(), x.cpu())


@pytest.mark.parametrize("pinned", [True, False], ids=["pinned", "pageable"])
def test_memory_and_masters_are_free_once_the_slots_are(sim: Accelerator, *, pinned: bool) -> None:
    """A copy of what comes next is on its way when another thread takes the memory."""
    model, x = Model([4096] * 6, width=256), torch.randn(64, 256).to(sim.device)
    streamer, _ = stream(sim, model, pinned=pinned)
    model.run(x, FORWARD)
    streamer.install()
    model.run(x, [0, 1])
    size = streamer.slot_bytes
    assert streamer.free() == size
    theirs = torch.full((size,), 7, dtype=torch.uint8, device=sim.device)
    for parameter in model.parameters():
        parameter.data.zero_()
    assert theirs.cpu().eq(7).all()
    assert torch.equal(model.run(x, FORWARD).cpu(), x.cpu())


def test_settling_waits_for_a_copy_that_the_background_has_not_begun(sim: Accelerator) -> None:
    lane, done = Lane(sim.device), []

    def slow() -> None:
        time.sleep(0.1)
        done.append(1)

    for _ in range(2):
        lane.copy_in_background((), slow)
    lane.settle()
    assert len(done) == 2


def test_a_load_in_the_middle_of_a_layer_leaves_it_its_memory(sim: Accelerator) -> None:
    """A layer asks for another model, and ComfyUI loads this one again, too."""
    model, x = Model([256] * 6), torch.randn(3, 64)
    expected, there = model.run(x, FORWARD), x.to(sim.device)
    streamer, ledger = stream(sim, model)
    for at in FORWARD:
        hook = model.blocks[at].down.register_forward_pre_hook(lambda *_: streamer.install())
        for _ in range(2):
            assert torch.equal(model.run(there, FORWARD).cpu(), expected)
        hook.remove()
        assert torch.equal(model.run(there, FORWARD).cpu(), expected)
    assert ledger.layer_runs == 3 * 6 * 6


class Caller(Block):
    """Runs another layer between its two maps."""

    called: nn.Module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.called(torch.relu(self.up(x)) @ self.up.weight)
        return x + self.down(torch.relu(self.up(x))) * self.scale


def test_a_layer_comes_back_behind_what_was_copied_ahead_to_where_it_was(sim: Accelerator) -> None:
    """While the layer that it calls computes, the one after it is copied into its memory."""
    model, x = Model([512, 64, 64], width=256), torch.randn(4, 256)
    caller = Caller(256, 512).requires_grad_(False)
    object.__setattr__(caller, "called", model.blocks[1])
    model.blocks[0] = caller
    expected, there, order = model.run(x, [0, 2]), x.to(sim.device), [0, 2]
    streamer, _ = stream(sim, model, budget=slot_size(caller))
    for _ in range(3):
        assert torch.equal(model.run(there, order).cpu(), expected)
        streamer.install()


def test_masters_may_be_written_after_a_layer_has_come_back(sim: Accelerator) -> None:
    """Its second copy is one that a load waits for, too."""
    model, x = Model([512, 4096, 64], width=256), torch.randn(4, 256).to(sim.device)
    caller = Caller(256, 512).requires_grad_(False)
    object.__setattr__(caller, "called", model.blocks[1])
    model.blocks[0] = caller
    streamer, ledger = stream(sim, model, budget=slot_size(model.blocks[1]))
    for _ in range(3):
        model.run(x, [0])
    streamer.install()
    for parameter in model.parameters():
        parameter.data.zero_()
    assert torch.equal(model.run(x, [0]).cpu(), torch.zeros(4, 256))
    assert ledger.layer_runs == 8


class Other:
    """Somebody else who wants a model's weights pinned."""


def test_a_pin_is_given_back_only_when_no_copy_reads_it(sim: Accelerator) -> None:
    """The other one, who wanted it, is gone at the next load, while a copy of what comes next is on its way."""
    host, other = active().host, Other()
    weights = PackedWeights(
        lambda block: host.register(block.data_ptr(), block.nbytes),
        lambda block: host.unregister(block.data_ptr()),
    )
    weights.want_pinned(other)
    model, x = Model([4096] * 6, width=256), torch.randn(64, 256).to(sim.device)
    stacks = [Stack("blocks", tuple(Layer(f"blocks.{i}", block) for i, block in enumerate(model.blocks)))]
    tier = MemoryTier(sim.device, weights, pinned=False)
    streamer = Streamer(stacks, Lane(sim.device), tier, Ledger())
    streamer.pack()
    streamer.install()
    expected = model.run(x, FORWARD).cpu()
    streamer.install()
    assert weights.pinned_bytes > 0
    model.run(x, [0, 1])
    del other
    streamer.pack()
    assert weights.pinned_bytes == 0
    streamer.install()
    assert torch.equal(model.run(x, FORWARD).cpu(), expected)
