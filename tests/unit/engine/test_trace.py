"""What ran in the last use is remembered, and a use that an error cut short is not what the next one is told."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from offload_runtime.engine import Trace
from offload_runtime.engine.trace import LONGEST


def recorded(*uses: Iterable[str]) -> Trace:
    trace = Trace()
    for use in uses:
        trace.begin_use()
        for layer in use:
            trace.record(layer)
    return trace


def test_before_anything_ran_nothing_is_known() -> None:
    trace = recorded(())
    assert list(trace.last) == []
    assert trace.passes is None


@given(st.lists(st.sampled_from("abcde"), min_size=1, max_size=30))
def test_a_use_is_remembered_in_order(order: list[str]) -> None:
    trace = recorded(order)
    assert trace.passes == max(map(order.count, order))
    trace.begin_use()
    assert list(trace.last) == order
    assert trace.passes == max(map(order.count, order))


def test_a_use_that_runs_nothing_keeps_what_is_known() -> None:
    """An encoder that is loaded for another clone, and not used."""
    trace = recorded("ba", (), ())
    trace.begin_use()
    assert list(trace.last) == ["b", "a"]


def broken_off() -> Trace:
    """A trace of four layers whose next use an error has ended in the first one."""
    trace = recorded("abcd", "a")
    trace.break_off()
    return trace


def test_a_use_that_broke_off_does_not_replace_a_longer_one() -> None:
    trace = broken_off()
    trace.begin_use()
    assert list(trace.last) == ["a", "b", "c", "d"]


def test_a_first_use_that_broke_off_tells_nothing() -> None:
    trace = recorded("ab")
    trace.break_off()
    trace.begin_use()
    assert list(trace.last) == []
    assert trace.passes is None


def test_a_use_that_went_on_after_an_error_was_a_whole_one() -> None:
    """A VAE that runs out of memory is asked for tiles instead."""
    trace = broken_off()
    trace.record("a")
    trace.begin_use()
    assert list(trace.last) == ["a", "a"]


def test_a_use_without_an_end_is_remembered_by_its_beginning() -> None:
    trace = Trace()
    for number in range(LONGEST + 10):
        trace.record(number)
    trace.begin_use()
    assert list(trace.last) == list(range(LONGEST))
