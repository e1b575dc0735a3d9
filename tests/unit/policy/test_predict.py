"""What a use should take, from those that were measured."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offload_runtime.policy.learnt import Timed
from offload_runtime.policy.predict import predicted, seconds_with

GB = 10**9
SIZE = 8 * GB
HELD_UP = Timed("1×128×128", "layerwise pinned", 4 * GB, 2, 1.0, 0.6, 8 * GB, False, 1.0)
"""Two calls of 4 GB each at 8 GB/s, and 0.4 s of computing."""


def test_that_of_the_last_comparable_use_counts() -> None:
    later = replace(HELD_UP, computing=1.1, at=2.0)
    assert predicted([HELD_UP, later], HELD_UP, SIZE) == pytest.approx(1.1)


@pytest.mark.parametrize(
    "other", [{"resolution": ""}, {"way": "resident"}, {"calls": 0}], ids=["input", "placement", "unused"]
)
def test_what_is_not_comparable_predicts_nothing(other: dict[str, object]) -> None:
    assert predicted([HELD_UP], replace(HELD_UP, **other), SIZE) is None
    assert predicted([], HELD_UP, SIZE) is None


def test_a_link_that_was_checked_counts_where_the_known_uses_did_not_wait_for_theirs() -> None:
    computed = replace(HELD_UP, waiting=0.0)
    more = replace(computed, resident=0)
    without, with_link = (predicted([computed], more, SIZE, link=link) for link in (0.0, 16e9))
    assert (without, with_link) == (pytest.approx(2.0), pytest.approx(1.0))


def test_what_a_first_run_costs_beyond_others_is_known_of_first_runs_only() -> None:
    paged = replace(HELD_UP, way="auto", moved=0, resident=0, first=True)
    assert predicted([paged], paged, SIZE) == pytest.approx(1.0)
    assert predicted([paged], replace(paged, first=False), SIZE) is None
    assert predicted([HELD_UP], replace(HELD_UP, first=True), SIZE) == pytest.approx(1.0)
    slow = replace(HELD_UP, first=True, computing=2.0)
    assert predicted([HELD_UP, slow], HELD_UP, SIZE) == pytest.approx(1.0)


def test_each_call_takes_as_long() -> None:
    assert predicted([HELD_UP], replace(HELD_UP, calls=6), SIZE) == pytest.approx(3.0)
    exact = replace(HELD_UP, calls=6, computing=2.5, at=0.0)
    assert predicted([exact, HELD_UP], replace(HELD_UP, calls=6), SIZE) == pytest.approx(2.5)


def test_what_stays_is_not_moved() -> None:
    more = predicted([HELD_UP], replace(HELD_UP, resident=6 * GB), SIZE)
    assert more == pytest.approx(0.5)  # half of it is moved, and copying still takes longer than computing
    assert predicted([HELD_UP], replace(HELD_UP, resident=8 * GB), SIZE) == pytest.approx(0.4)
    assert predicted([HELD_UP], replace(HELD_UP, resident=0), SIZE) == pytest.approx(2.0)


def test_what_comfyui_brings_predicts_nothing_for_another_residency() -> None:
    core = replace(HELD_UP, way="auto", moved=0, waiting=0.0)
    assert predicted([core], core, SIZE) == pytest.approx(1.0)
    assert predicted([core], replace(core, resident=8 * GB), SIZE) is None


@given(
    st.floats(0.01, 100),
    st.floats(0, 1),
    st.integers(1, 100),
    st.integers(0, 100),
    st.integers(0, 100),
    st.floats(0, 50),
)
def test_more_to_move_never_takes_less(
    computing: float, waited: float, moved: int, one: int, two: int, link: float
) -> None:
    waiting = waited * computing
    least, most = (seconds_with(computing, waiting, moved, moves, link) for moves in sorted((one, two)))
    assert least <= most * (1 + 1e-9)
    assert least >= (computing - waiting) * (1 - 1e-9)
    assert seconds_with(computing, waiting, moved, moved, link) == computing


def test_a_link_says_what_a_use_that_moved_nothing_cannot() -> None:
    assert seconds_with(0.4, 0.0, 0, 8 * GB) == 0.4
    assert seconds_with(0.4, 0.0, 0, 8 * GB, link=10 * GB) == pytest.approx(0.8)
