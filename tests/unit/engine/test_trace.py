"""The order of the last use predicts the next one, and a wrong prediction heals."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from offload_runtime.engine import Trace


def test_before_anything_ran_the_given_order_is_predicted() -> None:
    trace = Trace()
    trace.begin_use(range(3))
    assert list(trace.expected) == [0, 1, 2]
    assert trace.passes is None
    assert [trace.record(layer) for layer in range(3)] == [0, 1, 2]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=30))
def test_a_use_that_repeats_is_followed_step_by_step(order: list[int]) -> None:
    trace = Trace()
    trace.begin_use(range(5))
    for layer in order:
        trace.record(layer)
    trace.begin_use(range(5))
    assert list(trace.expected) == order
    assert [trace.record(layer) for layer in order] == list(range(len(order)))
    assert trace.passes == max(map(order.count, order))


def test_a_skipped_layer_is_passed_over_and_an_unknown_one_has_no_place() -> None:
    trace = Trace()
    trace.begin_use([0, 1, 2, 3])
    assert [trace.record(layer) for layer in (0, 2, 3)] == [0, 2, 3]
    assert trace.record(7) == -1
    assert trace.record(1) == 1


def test_a_use_that_runs_nothing_keeps_the_prediction() -> None:
    """An encoder that is loaded for another clone, and not used."""
    trace = Trace()
    trace.begin_use(range(2))
    trace.record(1)
    trace.record(0)
    trace.begin_use(range(2))
    trace.begin_use(range(2))
    assert list(trace.expected) == [1, 0]


def broken_off() -> Trace:
    """A trace of four layers whose next use an error has ended in the first one."""
    trace = Trace()
    trace.begin_use(range(4))
    for layer in (0, 1, 2, 3):
        trace.record(layer)
    trace.begin_use(())
    trace.record(0)
    trace.break_off()
    return trace


def test_a_use_that_broke_off_does_not_replace_a_longer_one() -> None:
    trace = broken_off()
    trace.begin_use(())
    assert trace.expected == [0, 1, 2, 3]


def test_a_use_that_went_on_after_an_error_was_a_whole_one() -> None:
    """A VAE that runs out of memory is asked for tiles instead."""
    trace = broken_off()
    trace.record(0)
    trace.begin_use(())
    assert trace.expected == [0, 0]
