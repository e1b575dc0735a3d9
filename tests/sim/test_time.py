"""The clocks: kernels, copies, streams, events; the same run gives the same times."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from . import PROFILES, Accelerator, Profile
from .timeline import COMPUTE, TO_DEVICE

#: Round numbers, so that every expected time below can be worked out by hand.
PLAIN = Profile("plain", 1 << 30, link=1e9, memory_bandwidth=1e12, half_flops=1e12)
KB = 1000
pytestmark = pytest.mark.card(profile=PLAIN)


def pinned(size: int) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.uint8).pin_memory()


def test_a_kernel_is_launched_and_runs_later(sim: Accelerator) -> None:
    a = torch.empty(1_000_000, dtype=torch.uint8, device=sim.device)
    start = sim.clock
    a.fill_(1)
    assert sim.clock - start == pytest.approx(5)
    torch.accelerator.synchronize()
    assert sim.clock - start == pytest.approx(5 + 3 + 1)


def test_matrix_products_cost_flops_and_fp32_a_quarter_of_the_rate(sim: Accelerator) -> None:
    for dtype, factor in ((torch.float16, 1), (torch.float32, 4)):
        a = torch.ones(500, 500, dtype=dtype, device=sim.device)
        sim.synchronize()
        mark = len(sim.timeline)
        _ = a @ a
        (kernel,) = sim.timeline.of(COMPUTE, mark)
        assert kernel.duration == pytest.approx(3 + 2 * 500**3 / 1e12 * 1e6 * factor)


def test_pinned_copies_return_at_once_and_pageable_ones_hold_the_host(sim: Accelerator) -> None:
    source, target = pinned(100 * KB), torch.empty(100 * KB, dtype=torch.uint8, device=sim.device)
    start = sim.clock
    target.copy_(source, non_blocking=True)
    assert sim.clock - start == pytest.approx(5)
    sim.synchronize()
    assert sim.clock - start == pytest.approx(5 + 8 + 100)
    start = sim.clock
    target.copy_(source)
    assert sim.clock - start == pytest.approx(5 + 8 + 100)
    start = sim.clock
    target.copy_(source.clone(), non_blocking=True)
    assert sim.clock - start == pytest.approx(5 + 8 + 200)


def test_a_changed_dtype_is_converted_where_torch_converts_it(sim: Accelerator) -> None:
    half = torch.zeros(100 * KB, dtype=torch.float16).pin_memory()
    mark = len(sim.timeline)
    half.to(sim.device, torch.float32, non_blocking=True)
    (copy,) = sim.timeline.of(TO_DEVICE, mark)
    assert (copy.moved, copy.pinned) == (200 * KB, True)
    mark = len(sim.timeline)
    half.to(sim.device, torch.float32)
    (copy,) = sim.timeline.of(TO_DEVICE, mark)
    assert (copy.moved, copy.pinned) == (400 * KB, False)


def test_a_view_with_gaps_is_copied_through_a_pageable_temporary(sim: Accelerator) -> None:
    matrix = torch.arange(64.0).view(8, 8).pin_memory()
    mark = len(sim.timeline)
    ours = matrix[:, ::2].to(sim.device, non_blocking=True)
    (copy,) = sim.timeline.of(TO_DEVICE, mark)
    assert not copy.pinned
    assert torch.equal(ours.cpu(), matrix[:, ::2])


def test_copies_overlap_compute_on_another_stream_only(sim: Accelerator) -> None:
    def run(side: torch.Stream) -> float:
        big = torch.empty(100_000_000, dtype=torch.uint8, device=sim.device)
        source = pinned(90 * KB)
        sim.synchronize()
        with sim.measure() as m:
            big.fill_(0)
            with side:
                source.to(sim.device, non_blocking=True)
            sim.synchronize()
        return m.ms

    other, same = run(torch.Stream(sim.device)), run(torch.accelerator.current_stream())
    assert other == pytest.approx(0.109, abs=0.001)
    assert same == pytest.approx(0.108 + 0.098, abs=0.001)


def test_the_link_does_one_copy_at_a_time_each_way(sim: Accelerator) -> None:
    streams = [torch.Stream(sim.device), torch.Stream(sim.device)]
    sources = [pinned(100 * KB), pinned(100 * KB)]
    kept = []
    start = sim.clock
    for stream, source in zip(streams, sources, strict=True):
        with stream:
            kept.append(source.to(sim.device, non_blocking=True))
    sim.synchronize()
    assert sim.clock - start == pytest.approx(5 + 2 * 108, abs=5)


def test_work_that_waits_does_not_hold_up_another_stream(sim: Accelerator) -> None:
    a = torch.empty(50_000_000, dtype=torch.uint8, device=sim.device)
    late, early = torch.Stream(sim.device), torch.Stream(sim.device)
    first, second = pinned(10 * KB), pinned(10 * KB)
    sim.synchronize()
    a.fill_(0)
    late.wait_stream(torch.accelerator.current_stream())
    with late:
        held_back = first.to(sim.device, non_blocking=True)
    with early:
        ahead = second.to(sim.device, non_blocking=True)
    copies = list(sim.timeline.of(TO_DEVICE))
    assert copies[1].end < copies[0].start
    del held_back, ahead


def test_events_order_streams_and_measure_time(sim: Accelerator) -> None:
    module = torch.get_device_module(sim.device)
    side, begin, end = module.Stream(), module.Event(enable_timing=True), module.Event(enable_timing=True)
    source = pinned(1000 * KB)
    with module.stream(side):
        begin.record()
        ours = source.to(sim.device, non_blocking=True)
        end.record(side)
    assert not end.query()
    module.current_stream().wait_event(end)
    result = ours + 1
    assert begin.elapsed_time(end) == pytest.approx(1.008, abs=0.01)
    kernel = list(sim.timeline.of(COMPUTE))[-1]
    assert kernel.start >= end._recorded[0]
    end.synchronize()
    assert end.query()
    assert result.sum().item() == source.numel()
    with pytest.raises(RuntimeError, match="recorded"):
        begin.elapsed_time(module.Event())


def test_polling_an_event_ends(sim: Accelerator) -> None:
    event, source = torch.Event(sim.device), pinned(100 * KB)
    side = torch.Stream(sim.device)
    with side:
        ours = source.to(sim.device, non_blocking=True)
        event.record()
    polls = 0
    while not event.query():
        polls += 1
    assert 50 < polls < 150
    assert (ours + 1).numel() == source.numel()


def test_the_current_stream_follows_the_context(sim: Accelerator) -> None:
    outer = torch.accelerator.current_stream()
    side = torch.Stream(device=sim.device)
    assert isinstance(side, torch.Stream)
    with side:
        assert torch.accelerator.current_stream() == side
        with torch.get_device_module(sim.device).stream(None):
            assert torch.get_device_module(sim.device).current_stream() == side
    assert torch.accelerator.current_stream() == outer != side
    torch.accelerator.set_stream(side)
    assert torch.accelerator.current_stream() == side


def test_reading_a_value_waits_for_it(sim: Accelerator) -> None:
    a = torch.empty(100_000_000, dtype=torch.uint8, device=sim.device).fill_(3)
    start = sim.clock
    assert a[7].item() == 3
    assert sim.clock - start > 100


def test_host_copies_take_the_threads_time(sim: Accelerator) -> None:
    a, b = torch.zeros(1_000_000, dtype=torch.uint8), torch.zeros(1_000_000, dtype=torch.uint8)
    start = sim.clock
    a.copy_(b)
    assert sim.clock - start == pytest.approx(100)


def test_the_same_run_gives_the_same_times() -> None:
    def run() -> list[tuple[str, float, float]]:
        with Accelerator("rtx3060") as sim:
            net = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)]).to(sim.device)
            side = torch.Stream(sim.device)
            x = torch.randn(2, 64).pin_memory()
            with side:
                ours = x.to(sim.device, non_blocking=True)
            torch.accelerator.current_stream().wait_stream(side)
            net(ours).sum().item()
            return [(i.name, i.start, i.end) for i in sim.timeline.intervals]

    assert run() == run()


def test_profiles_differ_and_typos_are_told() -> None:
    times = {}
    for name in PROFILES:
        with Accelerator(name, shapes=True) as sim, sim.measure() as m:
            torch.empty(1 << 28, dtype=torch.uint8).pin_memory().to(sim.device, non_blocking=True)
        times[name] = m.ms
    assert times["h200"] < times["rtx4090"] < times["rtx3060"]
    with pytest.raises(ValueError, match="rtx3060, rtx4090"):
        Accelerator("rtx9999")


def test_a_chrome_trace_can_be_written(sim: Accelerator, tmp_path: Path) -> None:
    ours = pinned(10 * KB).to(sim.device, non_blocking=True)
    (ours + 1).cpu()
    events = json.loads(sim.timeline.write_chrome_trace(tmp_path / "trace.json").read_text())["traceEvents"]
    names = {event["name"] for event in events}
    assert {"add", "copy to device", "copy to host", "thread_name"} <= names
    spans = [event for event in events if event["ph"] == "X"]
    assert all(event["dur"] >= 0 and event["ts"] >= 0 for event in spans)
