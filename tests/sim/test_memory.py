"""Bytes: live, peak, reserved, the cap, record_stream, weights, leaks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from . import Accelerator

MIB = 1 << 20


def block(mib: float, device: torch.device) -> torch.Tensor:
    return torch.empty(int(mib * MIB), dtype=torch.uint8, device=device)


def test_bytes_are_counted_by_storage(sim: Accelerator) -> None:
    a = block(2, sim.device)
    views = [a[:10], a.view(-1, 2), a.view(torch.float32)]
    assert sim.memory.live == 2 * MIB
    del a
    assert sim.memory.live == 2 * MIB
    del views
    assert sim.memory.live == 0
    assert sim.memory.peak == 2 * MIB


def test_small_allocations_are_rounded(sim: Accelerator) -> None:
    tensor = torch.empty(1, device=sim.device)
    assert sim.memory.live == 512
    assert tensor.untyped_storage().nbytes() == 4


def test_freed_memory_stays_reserved_until_the_cache_is_emptied(sim: Accelerator) -> None:
    a = block(4, sim.device)
    del a
    module = torch.get_device_module(sim.device)
    assert (module.memory_allocated(), module.memory_reserved()) == (0, 4 * MIB)
    b = block(1, sim.device)
    assert sim.memory.reserved == 4 * MIB
    module.empty_cache()
    assert sim.memory.reserved == 1 * MIB
    assert module.mem_get_info()[0] == sim.cap - b.numel()


def test_streams_do_not_share_their_pools(sim: Accelerator) -> None:
    first = block(4, sim.device)
    del first
    with torch.Stream(sim.device):
        second = block(4, sim.device)
    assert sim.memory.reserved == 8 * MIB
    del second


def test_the_cap_raises_the_real_error(sim: Accelerator) -> None:
    sim.cap = 10 * MIB
    held = block(6, sim.device)
    with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 5\.00 MiB") as caught:
        block(5, sim.device)
    assert isinstance(caught.value, torch.cuda.OutOfMemoryError)
    assert "test_memory.py" in str(caught.value)
    assert block(4, sim.device).numel() == 4 * MIB
    del held
    assert block(10, sim.device).numel() == 10 * MIB


def test_more_than_the_host_has_is_refused_by_the_card(sim: Accelerator) -> None:
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(1 << 50, dtype=torch.uint8, device=sim.device)


def test_an_operation_that_does_not_fit_leaves_the_rest_usable(sim: Accelerator) -> None:
    sim.cap = 10 * MIB
    a = block(6, sim.device).zero_()
    with pytest.raises(torch.OutOfMemoryError):
        a + 1
    assert a.add_(1)[0].item() == 1
    assert sim.memory.live == 6 * MIB


def test_peak_can_be_reset(sim: Accelerator) -> None:
    block(8, sim.device)
    held = block(1, sim.device)
    torch_counts = torch.get_device_module(sim.device)
    torch_counts.reset_peak_memory_stats()
    assert torch_counts.max_memory_allocated() == held.numel()
    assert sim.memory.peak >= 8 * MIB, "what code under test sets back is torch's own count"
    sim.memory.reset_peak()
    assert sim.memory.peak == held.numel()


def test_weights_are_what_came_over_the_link(sim: Accelerator) -> None:
    weight = torch.zeros(MIB, dtype=torch.uint8).to(sim.device)
    scalar = torch.zeros(8).to(sim.device)
    activation = block(3, sim.device)
    assert sim.memory.weights == MIB
    del weight, scalar, activation
    assert (sim.memory.weights, sim.memory.weights_peak) == (0, MIB)


def test_record_stream_holds_memory_until_that_stream_is_past(sim: Accelerator) -> None:
    side = torch.Stream(sim.device)
    a = block(4, sim.device)
    source = torch.empty(64 * MIB, dtype=torch.uint8).pin_memory()
    with side:
        source.to(sim.device, non_blocking=True)
    a.record_stream(side)
    del a
    small = block(1, sim.device)
    assert sim.memory.live >= 5 * MIB
    side.synchronize()
    del small
    again = block(1, sim.device)
    assert sim.memory.live == again.numel()


def test_a_leak_report_names_the_place(sim: Accelerator) -> None:
    mark = sim.memory.allocations
    leak = []
    for _ in range(3):
        leak.append(block(1, sim.device))
    report = sim.memory.report(since=mark)
    assert report.startswith(f"{3 * MIB} bytes in 3 allocations at sim/test_memory.py:")
    assert "in block" in report
    assert "test_a_leak_report" in report
    leak.clear()
    assert sim.memory.report(since=mark) == ""


def test_pinned_bytes_are_counted_and_limited(sim: Accelerator) -> None:
    a = torch.empty(MIB, dtype=torch.uint8, pin_memory=True)
    assert a.is_pinned()
    assert a[10:20].is_pinned()
    assert not a.clone().is_pinned()
    assert sim.pinned == MIB
    sim.pin_limit = MIB
    with pytest.raises(RuntimeError, match="pinning"):
        torch.empty(1).pin_memory()
    del a
    assert sim.pinned == 0


@settings(max_examples=30)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 40), st.integers(0, 1)), max_size=40))
def test_the_sums_hold_whatever_is_allocated_and_freed(steps: list[tuple[bool, int, int]]) -> None:
    with Accelerator(cap=200 * 1024) as sim:
        streams = [torch.Stream(sim.device), torch.Stream(sim.device)]
        held: list[torch.Tensor] = []
        for allocate, kib, stream in steps:
            if not allocate and held:
                held.pop(kib % len(held))
                continue
            with streams[stream]:
                try:
                    held.append(torch.empty(kib * 1024, dtype=torch.uint8, device=sim.device))
                except torch.OutOfMemoryError:
                    assert sum(t.numel() for t in held) + kib * 1024 > sim.cap
            assert sim.memory.live == sum(t.numel() for t in held)
            assert sim.memory.live <= sim.memory.reserved <= sim.cap
            assert sim.memory.live <= sim.memory.peak <= sim.memory.reserved_peak
        held.clear()
        assert sim.memory.live == 0
