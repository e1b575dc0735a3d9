"""The engine on the simulated card: overlap, order, memory, and the CPU's numbers."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import nn

from offload_runtime.engine import (
    Lane,
    Layer,
    Ledger,
    MemoryTier,
    PackedWeights,
    Stack,
    Streamer,
    Trace,
)

from . import Accelerator

KIB = 1024


class Block(nn.Module):
    """A layer: two maps and a parameter of its own."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width, bias=False)
        self.scale = nn.Parameter(torch.randn(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x))) * self.scale


class Model(nn.Module):
    def __init__(self, inner: Sequence[int], width: int = 64) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block(width, size) for size in inner)
        self.requires_grad_(False)

    def run(self, x: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
        for index in order:
            x = self.blocks[index](x)
        return x


def unpinned(block: torch.Tensor) -> bool:
    return False


def stream(
    sim: Accelerator,
    model: Model,
    *,
    pinned: bool = True,
    budget: int | None = None,
    parts: bool = False,
    look_ahead: bool = True,
) -> tuple[Streamer, Ledger]:
    layers = tuple(
        Layer(f"blocks.{i}", block, (block.up, block.down) if parts else ())
        for i, block in enumerate(model.blocks)
    )
    tier, ledger = MemoryTier(sim.device, PackedWeights(sim.pin if pinned else unpinned)), Ledger()
    stacks = [Stack("blocks", layers)]
    streamer = Streamer(stacks, Lane(sim.device), tier, ledger, budget, look_ahead=look_ahead)
    streamer.pack()
    streamer.install()
    streamer.allocate()
    return streamer, ledger


def packed(module: nn.Module) -> int:
    """The bytes that a module takes in the slots."""
    return sum(-(-p.nbytes // 256) * 256 for p in module.parameters())


FORWARD = list(range(6))
ORDERS: dict[str, list[int]] = {
    "forward": FORWARD,
    "reverse": FORWARD[::-1],
    "repeats": [0, 0, 1, 1, 1, 2, 3, 4, 5],
    "skips": [0, 2, 5],
    "loop": FORWARD * 3,
    "recursion": [0, 1, 2, 1, 2, 3, 2, 3, 4, 5],
    "early exit": [0, 1],
    "two stacks interleaved": [0, 3, 1, 4, 2, 5],
}


@pytest.mark.parametrize("pinned", [True, False], ids=["pinned", "pageable"])
@pytest.mark.parametrize("inner", [[256] * 6, [64, 512, 128, 1024, 32, 256]], ids=["uniform", "mixed"])
@pytest.mark.parametrize("order", ORDERS)
def test_any_order_gives_the_same_numbers_the_first_and_the_second_time(
    sim: Accelerator, order: str, inner: list[int], pinned: bool
) -> None:
    model, x = Model(inner), torch.randn(3, 64)
    expected = model.run(x, ORDERS[order])
    streamer, _ = stream(sim, model, pinned=pinned)
    for _ in range(3):
        assert torch.equal(model.run(x.to(sim.device), ORDERS[order]).cpu(), expected)
        streamer.install()
    assert {p.device.type for p in model.parameters()} == {"cpu"}


def test_another_order_than_last_time_gives_the_same_numbers(sim: Accelerator) -> None:
    model, x = Model([64, 512, 128, 1024, 32, 256]), torch.randn(3, 64)
    streamer, _ = stream(sim, model)
    for order in ORDERS.values():
        expected = Model([64, 512, 128, 1024, 32, 256]).run(x, order)
        assert torch.equal(model.run(x.to(sim.device), order).cpu(), expected)
        streamer.install()


def test_the_next_layer_arrives_while_the_current_one_computes(sim: Accelerator) -> None:
    model, x = Model([4096] * 6, width=256), torch.randn(64, 256).to(sim.device)
    _kept = stream(sim, model)
    with sim.measure() as m:
        model.run(x, FORWARD)
    assert m.to_device_pageable == 0
    assert m.overlap_ms > 0


@pytest.mark.parametrize("order", ["forward", "reverse", "skips", "recursion"])
def test_a_second_use_copies_every_run_layer_once_and_nothing_else(sim: Accelerator, order: str) -> None:
    model, x = Model([256] * 6), torch.randn(3, 64).to(sim.device)
    streamer, ledger = stream(sim, model)
    model.run(x, ORDERS[order])
    streamer.install()
    before = ledger.moved["memory"]
    model.run(x, ORDERS[order])
    layer = sum(p.nbytes for p in model.blocks[0].parameters())
    runs = len(ORDERS[order])
    assert ledger.moved["memory"] - before <= runs * layer
    if len(set(ORDERS[order])) == runs:
        assert ledger.moved["memory"] - before == runs * layer


def test_a_packed_layer_is_one_copy(sim: Accelerator) -> None:
    model, x = Model([256] * 6), torch.randn(3, 64).to(sim.device)
    _kept = stream(sim, model)
    mark = len(sim.timeline)
    model.run(x, FORWARD)
    from .timeline import TO_DEVICE

    assert len(list(sim.timeline.of(TO_DEVICE, mark))) == 6


def test_device_memory_is_two_neighbours_and_never_grows(sim: Accelerator) -> None:
    model, x = Model([64, 512, 128, 1024, 32, 256]), torch.randn(3, 64).to(sim.device)
    live = sim.memory.live
    streamer, _ = stream(sim, model)
    slots = sim.memory.live - live
    assert slots == streamer.slot_bytes < sum(p.nbytes for p in model.parameters())
    for order in ORDERS.values():
        model.run(x, order)
        streamer.install()
        assert sim.memory.live - live == slots
    streamer.free()
    assert sim.memory.live == live


@pytest.mark.parametrize("budget", [0, 200 * KIB, 400 * KIB])
def test_a_budget_bounds_the_slots_down_to_one_layer(sim: Accelerator, budget: int) -> None:
    inner = [64, 512, 128, 1024, 32, 256]
    model, x = Model(inner), torch.randn(3, 64)
    expected = Model(inner).run(x, FORWARD)
    streamer, _ = stream(sim, model, budget=budget)
    largest = max(map(packed, model.blocks))
    assert streamer.slot_bytes <= max(budget, largest)
    assert torch.equal(model.run(x.to(sim.device), FORWARD).cpu(), expected)


@pytest.mark.parametrize("pinned", [True, False], ids=["pinned", "pageable"])
@pytest.mark.parametrize("order", ORDERS)
def test_below_two_layers_the_parts_of_a_layer_stream_within_the_budget(
    sim: Accelerator, order: str, pinned: bool
) -> None:
    inner = [64, 512, 128, 1024, 32, 256]
    model, x = Model(inner), torch.randn(3, 64)
    expected = model.run(x, ORDERS[order])
    largest = max(max(map(packed, (b.up, b.down))) for b in model.blocks)
    budget, live = largest + 100 * KIB, sim.memory.live
    assert budget < max(map(packed, model.blocks))
    streamer, _ = stream(sim, model, pinned=pinned, budget=budget, parts=True)
    for _ in range(3):
        given = x.to(sim.device)
        before = sim.memory.live
        assert torch.equal(model.run(given, ORDERS[order]).cpu(), expected)
        assert sim.memory.live == before, "nothing is allocated in a use"
        streamer.install()
        del given
    assert 0 < streamer.slot_bytes <= budget
    streamer.uninstall()
    streamer.free()
    assert sim.memory.live == live
    assert not any("forward" in module.__dict__ for module in model.modules())


def test_parts_are_copied_ahead_and_once(sim: Accelerator) -> None:
    model, x = Model([4096] * 6, width=256), torch.randn(64, 256).to(sim.device)
    streamer, ledger = stream(sim, model, budget=2 * packed(model.blocks[0].up) + 64 * KIB, parts=True)
    model.run(x, FORWARD)
    streamer.install()
    before = ledger.moved["memory"]
    with sim.measure() as m:
        model.run(x, FORWARD)
    assert ledger.moved["memory"] - before == sum(p.nbytes for p in model.parameters())
    assert m.overlap_ms > 0


def test_clones_that_split_and_that_do_not_take_turns(sim: Accelerator) -> None:
    """They share one trace, because they run the same layers."""
    model, x, trace = Model([256] * 6), torch.randn(3, 64), Trace()
    expected = model.run(x, FORWARD)
    tier = MemoryTier(sim.device, PackedWeights(sim.pin))
    layers = tuple(Layer(f"blocks.{i}", b, (b.up, b.down)) for i, b in enumerate(model.blocks))
    budgets = (None, 160 * KIB, None, 160 * KIB)
    streamers = [
        Streamer([Stack("blocks", layers)], Lane(sim.device), tier, Ledger(), budget, trace)
        for budget in budgets
    ]
    for streamer in streamers:
        streamer.pack()
        streamer.install()
        assert torch.equal(model.run(x.to(sim.device), FORWARD).cpu(), expected)
        streamer.uninstall()
        streamer.free()


def test_a_layer_that_needs_no_copy_is_not_wrapped_once_its_passes_are_known(sim: Accelerator) -> None:
    model, x = Model([256] * 6), torch.randn(3, 64).to(sim.device)
    model.blocks[1].to(sim.device)
    streamer, ledger = stream(sim, model)
    model.run(x, FORWARD)
    assert ledger.layer_runs == 6, "the first use tells how often each layer runs"
    streamer.install()
    wrapped = ["forward" in block.__dict__ for block in model.blocks]
    assert wrapped == [True, False, True, True, True, True]
    expected = model.run(x, FORWARD).cpu()
    model.blocks[1].to("cpu")
    model.blocks[4].to(sim.device)
    streamer.adjust()
    assert torch.equal(model.run(x, FORWARD).cpu(), expected)
    assert ledger.layer_runs == 16


def test_an_empty_weight_goes_along(sim: Accelerator) -> None:
    model, x = Model([256] * 2), torch.randn(3, 64).to(sim.device)
    for block in model.blocks:
        block.to(sim.device)
        block.register_parameter("nothing", nn.Parameter(torch.empty(0), requires_grad=False))
    expected = model.run(x, [0, 1]).cpu()
    seen: list[str] = []
    last = model.blocks[1]
    last.up.register_forward_pre_hook(lambda *given: seen.append(last.nothing.device.type))
    _kept = stream(sim, model)
    assert torch.equal(model.run(x, [0, 1]).cpu(), expected)
    assert seen == [sim.device.type]


def test_an_interrupted_use_is_not_what_the_next_one_is_predicted_from(sim: Accelerator) -> None:
    model, x = Model([4096] * 6, width=256), torch.randn(512, 256).to(sim.device)
    streamer, _ = stream(sim, model)
    model.run(x, FORWARD)
    streamer.install()
    with sim.measure() as whole:
        model.run(x, FORWARD)
    hook = model.blocks[2].down.register_forward_pre_hook(
        lambda *args: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    streamer.install()
    with pytest.raises(KeyboardInterrupt):
        model.run(x, FORWARD)
    hook.remove()
    streamer.install()
    with sim.measure() as again:
        model.run(x, FORWARD)
    assert again.ms < 1.02 * whole.ms


def test_weights_that_are_replaced_or_written_are_seen(sim: Accelerator) -> None:
    model, x = Model([256] * 6), torch.randn(3, 64).to(sim.device)
    streamer, _ = stream(sim, model)
    model.run(x, FORWARD)
    streamer.install()
    model.blocks[2].up.weight = nn.Parameter(torch.randn(256, 64), requires_grad=False)
    model.blocks[3].scale.fill_(2)
    got = model.run(x, FORWARD).cpu()
    streamer.uninstall()
    assert torch.equal(got, model.run(x.cpu(), FORWARD))


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("at", FORWARD)
def test_after_a_failure_in_any_layer_the_next_use_is_right(
    sim: Accelerator, at: int, error: type[BaseException]
) -> None:
    model, x = Model([256] * 6), torch.randn(3, 64)
    expected = model.run(x, FORWARD)
    ids = [id(p) for p in model.parameters()]
    streamer, _ = stream(sim, model)

    def fail(*args: object) -> None:
        raise error("half-way")

    hook = model.blocks[at].down.register_forward_pre_hook(fail)
    with pytest.raises(error):
        model.run(x.to(sim.device), FORWARD)
    hook.remove()
    assert [id(p) for p in model.parameters()] == ids
    assert torch.equal(model.run(x.to(sim.device), FORWARD).cpu(), expected)
    streamer.install()
    assert torch.equal(model.run(x.to(sim.device), FORWARD).cpu(), expected)


def test_an_error_of_a_background_copy_is_raised_by_the_layer_that_needs_it(
    sim: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = Model([256] * 6), torch.randn(3, 64)
    expected = model.run(x, FORWARD)
    streamer, _ = stream(sim, model, pinned=False)
    copy = Lane.copy

    def fail(self: Lane, *_: object) -> object:
        monkeypatch.setattr(Lane, "copy", copy)
        raise RuntimeError("the host memory is gone")

    monkeypatch.setattr(Lane, "copy", fail)
    with pytest.raises(RuntimeError, match="host memory is gone"):
        model.run(x.to(sim.device), FORWARD)
    streamer.install()
    assert torch.equal(model.run(x.to(sim.device), FORWARD).cpu(), expected)


def test_the_background_thread_ends_with_the_lane(sim: Accelerator) -> None:
    model, before = Model([256] * 2), threading.enumerate()
    kept = stream(sim, model, pinned=False)
    model.run(torch.randn(3, 64).to(sim.device), [0, 1])
    threads = [t for t in threading.enumerate() if t not in before and t.name.startswith("layerwise-offload")]
    assert len(threads) == 1
    kept[0].uninstall()
    del kept
    gc.collect()
    threads[0].join(timeout=10)
    assert not threads[0].is_alive()


def test_two_models_share_the_lane(sim: Accelerator) -> None:
    one, other, x = Model([256] * 6), Model([512] * 3), torch.randn(3, 64)
    expected = one.run(x, FORWARD), other.run(x, [0, 1, 2])
    stream_one, stream_other = stream(sim, one)[0], stream(sim, other)[0]
    for _ in range(2):
        assert torch.equal(one.run(x.to(sim.device), FORWARD).cpu(), expected[0])
        assert torch.equal(other.run(x.to(sim.device), [0, 1, 2]).cpu(), expected[1])
    stream_one.free()
    assert torch.equal(other.run(x.to(sim.device), [0, 1, 2]).cpu(), expected[1])
    stream_other.free()


@pytest.mark.parametrize("broken", ["wait", "mark"])
def test_the_simulator_catches_a_missing_synchronisation(
    sim: Accelerator, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    """The silence of the tests above means something."""
    from . import RaceFault

    nothing: Callable[..., None] = lambda *args: None  # noqa: E731
    monkeypatch.setattr(Lane, broken, nothing)
    model = Model([4096] * 6, width=256)
    _kept = stream(sim, model)
    with pytest.raises(RaceFault):
        model.run(torch.randn(64, 256).to(sim.device), FORWARD)


def test_layers_that_share_a_weight_are_packed_once_and_not_again_at_every_load(sim: Accelerator) -> None:
    model, blocks = Model([256] * 3), []
    model.blocks[2].up.weight = model.blocks[0].up.weight
    layers = tuple(Layer(f"blocks.{i}", block) for i, block in enumerate(model.blocks))

    def counted(block: torch.Tensor) -> bool:
        blocks.append(block.nbytes)
        return sim.pin(block)

    tier = MemoryTier(sim.device, PackedWeights(counted))
    streamer = Streamer([Stack("blocks", layers)], Lane(sim.device), tier, Ledger())
    streamer.pack()
    made = len(blocks)
    streamer.pack()
    assert len(blocks) == made
