"""The room that is made after a failure: how much, for how long, and for whom."""

from __future__ import annotations

import itertools
from dataclasses import replace

from facts import GB
from hypothesis import given
from hypothesis import strategies as st

from offload_runtime.policy.margin import CALM, PATIENCE, Margin, after_failure

CARD = 24 * GB


def failed(before: Margin | None = None, missing: int = 0) -> Margin:
    return after_failure(before, "vae", missing, CARD, others=GB, at=1.0)


def test_what_was_missing_is_left_free_and_at_least_a_part_of_the_card() -> None:
    assert failed().bytes == CARD // 16
    assert failed(missing=4 * GB).bytes == 4 * GB
    again = failed(failed(missing=4 * GB), missing=GB)
    assert (again.bytes, again.failures) == (8 * GB, 2)
    assert failed(again, missing=9 * GB).bytes == CARD // 2, "there is a limit"


def runs(margin: Margin, spare: int, count: int) -> Margin:
    for _ in range(count):
        margin = margin.relaxed(spare, CARD, margin.at + 1)
    return margin


def test_it_is_halved_when_half_of_it_would_have_done_for_some_runs() -> None:
    margin = failed(missing=4 * GB)
    plenty = 3 * GB
    assert runs(margin, plenty, CALM - 1).bytes == 4 * GB
    assert runs(margin, plenty, CALM).bytes == 2 * GB
    assert runs(margin, plenty, 9 * CALM).bytes == 0
    assert runs(margin, 2 * GB, 99).bytes == 4 * GB, "half of it is 2 GB, and a little has to stay free"


def test_a_run_that_needed_it_all_begins_the_count_anew() -> None:
    margin = runs(failed(missing=4 * GB), 3 * GB, CALM - 1).relaxed(0, CARD, 9.0)
    assert runs(margin, 3 * GB, CALM - 1).bytes == 4 * GB


@given(st.lists(st.booleans(), max_size=400))
def test_a_workflow_that_fails_whenever_it_can_fails_seldom(big: list[bool]) -> None:
    """Sizes change at random; a run of the large one fails where less than 3 GB are left."""
    margin: Margin | None = None
    failures: list[int] = []
    for number, is_big in enumerate(big):
        need = 3 * GB if is_big else 0
        had = margin.bytes if margin is not None else 0
        if had < need:
            failures.append(number)
            margin = after_failure(margin, "vae", need - had, CARD, 0, float(number))
        elif margin is not None:
            margin = margin.relaxed(had - need, CARD, float(number))
    for count, (one, other) in enumerate(itertools.pairwise(failures)):
        assert other - one > min(PATIENCE, CALM << count), failures


def test_it_does_not_count_while_others_have_given_back_as_much() -> None:
    margin = replace(failed(missing=4 * GB), others=6 * GB)
    assert margin.counts(6 * GB)
    assert margin.counts(3 * GB)
    assert not margin.counts(2 * GB)
    assert not replace(margin, bytes=0).counts(6 * GB)
