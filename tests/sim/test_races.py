"""Each detector fires on a planted fault and stays silent on the corrected code."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from . import (
    Accelerator,
    FreedWhileUsed,
    ReadBeforeArrival,
    WriteWhileRead,
    WriteWhileWritten,
)


@pytest.fixture
def side(sim: Accelerator) -> torch.Stream:
    return torch.Stream(sim.device)


@pytest.fixture
def weight() -> torch.Tensor:
    return torch.arange(4096.0)


def main() -> torch.Stream:
    return torch.accelerator.current_stream()


def test_reading_before_arrival(sim: Accelerator, side: torch.Stream, weight: torch.Tensor) -> None:
    with side:
        ours = weight.pin_memory().to(sim.device, non_blocking=True)
    with pytest.raises(ReadBeforeArrival) as caught:
        ours + 1
    text = str(caught.value)
    assert "copy to device on stream 1 at sim/test_races.py" in text
    assert "add on stream 0 at sim/test_races.py" in text
    assert caught.value.earlier.actor == ("stream", 1)


@pytest.mark.parametrize("wait", ["stream", "event", "event_wait", "host_event", "host_stream", "device"])
def test_reading_after_any_wait_is_fine(
    sim: Accelerator, side: torch.Stream, weight: torch.Tensor, wait: str
) -> None:
    host = weight.pin_memory()
    with side:
        ours = host.to(sim.device, non_blocking=True)
        event = torch.Event(sim.device)
        event.record()
    {
        "stream": lambda: main().wait_stream(side),
        "event": lambda: main().wait_event(event),
        "event_wait": lambda: event.wait(),
        "host_event": lambda: event.synchronize(),
        "host_stream": lambda: side.synchronize(),
        "device": lambda: torch.accelerator.synchronize(),
    }[wait]()
    assert torch.equal((ours + 1).cpu(), weight + 1)


def test_an_event_recorded_too_early_is_no_wait(
    sim: Accelerator, side: torch.Stream, weight: torch.Tensor
) -> None:
    host = weight.pin_memory()
    with side:
        event = side.record_event()
        ours = host.to(sim.device, non_blocking=True)
    main().wait_event(event)
    with pytest.raises(ReadBeforeArrival):
        ours + 1


def test_order_carries_over_a_third_stream(
    sim: Accelerator, side: torch.Stream, weight: torch.Tensor
) -> None:
    host, third = weight.pin_memory(), torch.Stream(sim.device)
    with side:
        ours = host.to(sim.device, non_blocking=True)
    third.wait_stream(side)
    main().wait_stream(third)
    ours.add_(1)


def test_overwriting_what_another_stream_reads(
    sim: Accelerator, side: torch.Stream, weight: torch.Tensor
) -> None:
    host = weight.pin_memory()
    slot = torch.zeros_like(weight, device=sim.device)
    _ = slot * 2
    with side, pytest.raises(WriteWhileRead) as caught:
        slot.copy_(host, non_blocking=True)
    assert "mul on stream 0" in str(caught.value)
    side.wait_stream(main())
    with side:
        slot.copy_(host, non_blocking=True)


def test_overwriting_what_another_stream_writes(
    sim: Accelerator, side: torch.Stream, weight: torch.Tensor
) -> None:
    slot = torch.zeros_like(weight, device=sim.device)
    with side, pytest.raises(WriteWhileWritten):
        slot.copy_(weight.pin_memory(), non_blocking=True)
    side.wait_stream(main())
    with side:
        slot.copy_(weight.pin_memory(), non_blocking=True)


def test_two_streams_may_use_two_parts_of_one_buffer(
    sim: Accelerator, side: torch.Stream, weight: torch.Tensor
) -> None:
    """A ring of slots is one storage."""
    ring = torch.empty(2, weight.numel(), device=sim.device)
    host = weight.pin_memory()
    ring[0].copy_(host, non_blocking=True)
    with side:
        ring[1].copy_(host, non_blocking=True)
    _ = ring[0] + 1
    with pytest.raises(ReadBeforeArrival):
        ring[1] + 1
    with pytest.raises(ReadBeforeArrival):
        ring + 1
    main().wait_stream(side)
    assert torch.equal((ring + 1).cpu()[1], weight + 1)


def test_a_range_check_is_by_byte(sim: Accelerator, side: torch.Stream) -> None:
    buffer = torch.empty(100, dtype=torch.uint8, device=sim.device)
    with side:
        buffer[10:20].fill_(1)
    buffer[:10].fill_(2)
    buffer[20:].fill_(3)
    for low, high in ((9, 11), (19, 21), (0, 100), (15, 16)):
        with pytest.raises(WriteWhileWritten):
            buffer[low:high].fill_(4)


def free_while_read(sim: Accelerator, side: torch.Stream, wait: bool, record: bool) -> torch.Tensor:
    """Memory of the side stream, read by the main one, freed, and asked for again."""
    with side:
        temporary = torch.ones(1 << 20, device=sim.device)
    main().wait_stream(side)
    _ = temporary + 1
    if record:
        temporary.record_stream(main())
    if wait:
        side.wait_stream(main())
    del temporary
    with side:
        return torch.empty(1 << 20, device=sim.device)


def test_reusing_memory_that_another_stream_reads(sim: Accelerator, side: torch.Stream) -> None:
    with pytest.raises(FreedWhileUsed) as caught:
        free_while_read(sim, side, wait=False, record=False)
    assert "add on stream 0" in str(caught.value)
    assert "the next owner" in str(caught.value)


@pytest.mark.parametrize("how", ["wait", "record"])
def test_reusing_memory_after_its_readers_is_fine(sim: Accelerator, side: torch.Stream, how: str) -> None:
    free_while_read(sim, side, wait=how == "wait", record=how == "record")


@pytest.mark.parametrize("wait", [False, True])
def test_writing_to_memory_that_the_allocators_own_stream_has_just_left(
    sim: Accelerator, side: torch.Stream, *, wait: bool
) -> None:
    """The pool of a stream gives memory out in that stream's order, which no other stream keeps."""
    left = torch.ones(1 << 20, device=sim.device)
    _ = left + 1
    del left
    fresh, source = torch.empty(1 << 20, device=sim.device), torch.ones(1 << 20).pin_memory()
    if wait:
        side.wait_stream(main())
    with nullcontext() if wait else pytest.raises(WriteWhileRead, match="add on stream 0"), side:
        fresh.copy_(source, non_blocking=True)


def free_and_never_reuse(sim: Accelerator, side: torch.Stream, wait: bool) -> None:
    with side:
        temporary = torch.ones(1 << 20, device=sim.device)
    main().wait_stream(side)
    _ = temporary + 1
    if wait:
        side.wait_stream(main())
    del temporary


def test_a_strict_card_reports_the_free_itself() -> None:
    with pytest.raises(FreedWhileUsed, match="freed while in use"), Accelerator(strict_free=True) as sim:
        free_and_never_reuse(sim, torch.Stream(sim.device), wait=False)
    with Accelerator(strict_free=True) as sim:
        free_and_never_reuse(sim, torch.Stream(sim.device), wait=True)
        assert torch.ones(1, device=sim.device).item() == 1


def test_overwriting_a_pinned_source_that_is_still_read(
    sim: Accelerator, side: torch.Stream, weight: torch.Tensor
) -> None:
    staging = torch.empty(2, weight.numel(), pin_memory=True)
    staging[0].copy_(weight)
    with side:
        ours = staging[0].to(sim.device, non_blocking=True)
        event = side.record_event()
    staging[1].copy_(weight)
    writes = (
        lambda: staging[0].copy_(weight),
        lambda: staging.zero_(),
        lambda: staging.__setitem__((0, 5), 1.0),
        lambda: staging[0].fill_(2),
    )
    for write in writes:
        with pytest.raises(WriteWhileRead, match="copy to device on stream 1"):
            write()
    event.synchronize()
    for write in writes:
        write()
    del ours


def test_reading_a_pinned_target_before_it_arrived(sim: Accelerator, side: torch.Stream) -> None:
    ours = torch.ones(4096, device=sim.device)
    host = ours.to("cpu", non_blocking=True)
    assert host.is_pinned()
    with pytest.raises(ReadBeforeArrival, match="copy to host"):
        torch.empty(4096).copy_(host)
    main().synchronize()
    assert torch.empty(4096).copy_(host).sum() == 4096


def test_memory_registered_in_place_is_pinned_memory(sim: Accelerator, side: torch.Stream) -> None:
    host = sim._runtime.host
    weight = torch.zeros(4096)
    address, size = weight.data_ptr(), weight.numel() * 4
    assert host.register(address, size)
    assert not host.register(address + 8, 8)
    assert weight[100:].is_pinned()
    with side:
        ours = weight.to(sim.device, non_blocking=True)
    with pytest.raises(FreedWhileUsed, match="unpinned while in use"):
        host.unregister(address)
    side.synchronize()
    assert host.unregister(address)
    assert not host.unregister(address)
    assert not weight.is_pinned()
    assert sim.pinned == 0
    del ours
