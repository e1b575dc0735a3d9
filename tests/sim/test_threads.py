"""Host threads: their own clocks, ordered by the hand-offs of the standard library."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from . import Accelerator, ReadBeforeArrival, WriteWhileWritten

MB = 1_000_000


def run_in_thread(body: Callable[[], Any]) -> None:
    """Run ``body`` on another thread without any hand-off that is watched on the way back."""
    done = threading.Lock()
    done.acquire()
    failure: list[BaseException] = []

    def target() -> None:
        try:
            body()
        except BaseException as error:
            failure.append(error)
        finally:
            done.release()

    threading.Thread(target=target).start()
    done.acquire()
    if failure:
        raise failure[0]


def test_a_worker_has_its_own_clock(sim: Accelerator) -> None:
    start = sim.clock
    source = torch.zeros(10 * MB, dtype=torch.uint8)
    target = torch.empty_like(source)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(target.copy_, source)
        while not future.done():
            pass
        assert sim.clock == start
        future.result()
        assert sim.clock - start == pytest.approx(1000)


def hand_over_queue(work: Callable[[], Any]) -> None:
    items: queue.Queue[None] = queue.Queue()
    threading.Thread(target=lambda: (work(), items.put(None))).start()
    items.get()


def hand_over_event(work: Callable[[], Any]) -> None:
    done = threading.Event()
    threading.Thread(target=lambda: (work(), done.set())).start()
    assert done.wait(10)


def hand_over_join(work: Callable[[], Any]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def hand_over_future(work: Callable[[], Any]) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()


def hand_over_condition(work: Callable[[], Any]) -> None:
    ready = threading.Condition()

    def target() -> None:
        work()
        with ready:
            ready.notify()

    with ready:
        threading.Thread(target=target).start()
        assert ready.wait(10)


def hand_over_priority_queue(work: Callable[[], Any]) -> None:
    items: queue.Queue[int] = queue.PriorityQueue()
    threading.Thread(target=lambda: (work(), items.put(1))).start()
    items.get()


HAND_OVERS = [
    hand_over_queue,
    hand_over_priority_queue,
    hand_over_event,
    hand_over_join,
    hand_over_future,
    hand_over_condition,
]


@pytest.mark.parametrize("hand_over", HAND_OVERS)
def test_hand_overs_carry_time_and_order(sim: Accelerator, hand_over: Callable[..., None]) -> None:
    source = torch.ones(10 * MB, dtype=torch.uint8)
    staging = torch.empty(10 * MB, dtype=torch.uint8, pin_memory=True)
    start = sim.clock
    hand_over(lambda: staging.copy_(source))
    assert sim.clock - start >= 1000
    assert staging.to(sim.device, non_blocking=True).sum().item() == 10 * MB


def test_a_copy_launched_before_the_worker_is_known_to_be_done(sim: Accelerator) -> None:
    staging = torch.empty(MB, dtype=torch.uint8, pin_memory=True)
    run_in_thread(lambda: staging.copy_(torch.ones(MB, dtype=torch.uint8)))
    with pytest.raises(ReadBeforeArrival, match="host copy on thread 1"):
        staging.to(sim.device, non_blocking=True)
    with pytest.raises(WriteWhileWritten, match="host copy on thread 1"):
        staging.fill_(0)


def test_an_explicit_hand_off_orders_what_is_not_watched(sim: Accelerator) -> None:
    staging = torch.empty(MB, dtype=torch.uint8, pin_memory=True)
    notes = []

    def work() -> None:
        staging.copy_(torch.ones(MB, dtype=torch.uint8))
        notes.append(sim.hand_off())

    run_in_thread(work)
    sim.take_over(notes[0])
    staging.to(sim.device, non_blocking=True)


def staged(sim: Accelerator) -> float:
    """The staged tier in small: a worker fills two pinned buffers meanwhile. Milliseconds."""
    weights = [torch.full((MB,), float(i)) for i in range(6)]
    staging = [torch.empty(MB, pin_memory=True) for _ in range(2)]
    slots = [torch.empty(MB, device=sim.device) for _ in range(2)]
    side = torch.Stream(sim.device)
    arrived = [torch.Event(sim.device) for _ in range(2)]
    used = [torch.Event(sim.device) for _ in range(2)]

    def fetch(i: int) -> None:
        arrived[i % 2].synchronize()
        staging[i % 2].copy_(weights[i])
        side.wait_event(used[i % 2])
        with side:
            slots[i % 2].copy_(staging[i % 2], non_blocking=True)
            arrived[i % 2].record()

    side.wait_stream(torch.accelerator.current_stream())
    total = torch.zeros((), device=sim.device)
    with ThreadPoolExecutor(1) as pool, sim.measure() as m:
        coming = pool.submit(fetch, 0)
        for i in range(6):
            coming.result()
            torch.accelerator.current_stream().wait_event(arrived[i % 2])
            total = total + slots[i % 2].sum()
            used[i % 2].record()
            if i < 5:
                coming = pool.submit(fetch, i + 1)
    assert total.item() == MB * 15
    return m.ms


def test_a_staging_worker_overlaps_the_device() -> None:
    """Six host copies of 0.4 ms hide the transfers; the times do not depend on which thread is quick."""
    times = []
    for _ in range(3):
        with Accelerator() as sim:
            times.append(staged(sim))
    assert 6 * 0.4 < times[0] < 6 * 0.4 + 0.5
    assert times == [times[0]] * 3


def test_streams_are_current_per_thread(sim: Accelerator) -> None:
    seen = []
    with torch.Stream(sim.device):
        run_in_thread(lambda: seen.append(torch.accelerator.current_stream().stream_id))
    assert seen == [0]
