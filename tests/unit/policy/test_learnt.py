"""What was learnt is merged the same whoever merges it, kept within bounds, and read as it was written."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offload_runtime.policy.learnt import (
    MODELS,
    TIMES,
    USES,
    WORKFLOWS,
    Learnt,
    Lesson,
    Timed,
    resolution_class,
    workflow_key,
)
from offload_runtime.policy.learnt_file import MOST_BYTES, from_text, to_text
from offload_runtime.policy.margin import Margin

SIZE = 1 << 30
counts = st.integers(0, SIZE)
moments = st.integers(1, 50).map(float)
times = st.builds(
    Timed,
    resolution=st.sampled_from(["", "1×128×128"]),
    way=st.sampled_from(["layerwise pinned", "resident"]),
    resident=counts,
    calls=st.integers(1, 3),
    computing=st.floats(0, 100),
    waiting=st.floats(0, 100),
    moved=counts,
    first=st.booleans(),
    at=moments,
)
lessons = st.builds(
    Lesson,
    at=moments,
    bytes=st.just(SIZE),
    passes=st.none() | st.integers(1, 9),
    demands=st.lists(counts, max_size=8).map(tuple),
    times=st.just(()),
).flatmap(
    lambda lesson: st.lists(times, max_size=4).map(
        lambda took: Lesson(lesson.at, SIZE, lesson.passes, lesson.demands).merged(
            replace(lesson, times=tuple(took))
        )
    )
)
margins = st.builds(
    Margin, at=moments, bytes=counts, component=st.sampled_from(["vae", "transformer"]), others=counts
)
names = st.sampled_from(["a", "b", "c"])
everything = st.builds(Learnt, st.dictionaries(names, lessons), st.dictionaries(names, margins))


@given(everything, everything, everything)
def test_who_merges_first_makes_no_difference(one: Learnt, two: Learnt, three: Learnt) -> None:
    assert one.merged(two) == two.merged(one)
    assert one.merged(two).merged(three) == one.merged(two.merged(three))
    assert one.merged(two).merged(two) == one.merged(two)


@given(everything)
def test_what_was_written_is_read(kept: Learnt) -> None:
    assert from_text(to_text(kept)) == kept


@given(everything, everything)
def test_the_later_one_is_right(one: Learnt, two: Learnt) -> None:
    both = one.merged(two)
    for key, lesson in both.models.items():
        known = [learnt.models[key] for learnt in (one, two) if key in learnt.models]
        assert lesson.at == max(other.at for other in known)
        assert {t.kind(SIZE) for t in lesson.times} == {t.kind(SIZE) for o in known for t in o.times}
    for key, margin in both.margins.items():
        assert margin.at == max(learnt.margins[key].at for learnt in (one, two) if key in learnt.margins)


def a_time(at: float, resident: int = 0) -> Timed:
    return Timed("", "layerwise", resident, 1, 1.0, 0.5, 10, False, at)


def test_what_was_used_longest_ago_goes_first() -> None:
    many = Learnt(
        {f"m{i}": Lesson(float(i), SIZE) for i in range(MODELS + 9)},
        {f"w{i}": Margin(float(i), 1, "vae") for i in range(WORKFLOWS + 9)},
    )
    kept = Learnt().merged(many)
    assert (len(kept.models), len(kept.margins)) == (MODELS, WORKFLOWS)
    assert "m8" not in kept.models
    assert "m9" in kept.models
    lesson = Lesson(0.0, SIZE)
    for i in range(2 * TIMES):
        lesson = lesson.with_time(a_time(float(i), i * SIZE // (2 * TIMES)))
    assert [took.at for took in lesson.times] == [float(i) for i in range(TIMES, 2 * TIMES)]


def test_a_run_like_an_earlier_one_is_kept_as_the_mean_of_both() -> None:
    later = replace(a_time(2.0, SIZE // 200), computing=2.0, waiting=0.7, moved=20)
    lesson = Lesson(0.0, SIZE).with_time(a_time(1.0)).with_time(later)
    assert lesson.times == (replace(later, computing=1.5, waiting=0.6, moved=15),)
    assert len(lesson.with_time(replace(later, first=True)).times) == 2
    assert len(lesson.with_time(a_time(3.0, SIZE // 2)).times) == 2


@pytest.mark.parametrize(
    ("shape", "other", "same"),
    [
        ((1, 4, 128, 128), (1, 16, 120, 136), True),  # the channels are those of the model
        ((1, 4, 128, 128), (1, 4, 64, 64), False),
        ((1, 4, 128, 128), (2, 4, 128, 128), False),
        ((1, 16, 21, 60, 104), (1, 16, 22, 60, 104), True),
        ((1, 16, 21, 60, 104), (1, 16, 41, 60, 104), False),
        ((1, 4, 128, 128), (1, 4, 128, 182), False),
    ],
)
def test_sizes_of_a_class(shape: tuple[int, ...], other: tuple[int, ...], same: bool) -> None:
    assert (resolution_class(shape) == resolution_class(other)) is same


def test_a_workflow_is_the_models_of_it_in_any_order() -> None:
    assert workflow_key(["b", "a"]) == workflow_key(["a", "b"]) != workflow_key(["a"])


GOOD = to_text(
    Learnt({"m": Lesson(1.0, SIZE, 1, (5,), (a_time(1.0),))}, {"w": Margin(1.0, 5, "vae")}),
)


@pytest.mark.parametrize(
    "spoilt",
    [
        "",
        "[]",
        '{"version":1}',
        GOOD[:-20],
        GOOD.replace('"version":1', '"version":2'),
        GOOD.replace('"moved":10', '"moved":-10'),
        GOOD.replace('"moved":10', '"moved":"10"'),
        GOOD.replace('"computing":1.0', '"computing":NaN'),
        GOOD.replace('"demands":[5]', '"demands":[5.5]'),
        GOOD.replace('"component":"vae"', '"component":null'),
        GOOD.replace('"passes":1', '"passes":true'),
        GOOD.replace('"first":false', '"first":0'),
        GOOD.replace('"times":[', '"times":[7,'),
        json.dumps({"version": 1, "models": {"m": 3}, "margins": {}}),
    ],
)
def test_what_is_no_such_text_is_refused(spoilt: str) -> None:
    assert from_text(GOOD).models["m"].demands == (5,)
    with pytest.raises(ValueError, match=r"."):
        from_text(spoilt)


def test_the_most_that_is_kept_can_be_read_again() -> None:
    took = [
        Timed("decode 1×1448×1448" * 2, "layerwise pinned", i << 34, 20, 1 / 3, 1 / 7, 1 << 40, True, i / 3)
        for i in range(TIMES)
    ]
    lesson = Lesson(1 / 3, TIMES << 34, 7, (1 << 40,) * USES, tuple(took))
    key = "Qwen25VLTEModel | 16584333312 | 0123456789abcdef | NVIDIA GeForce RTX 4090 24210 MB dynamic | ComfyUI 0.33.0"
    models = {f"{key} {i}": lesson for i in range(MODELS)}
    margins = {
        workflow_key([f"{key} {i}", *[key] * 8]): Margin(1 / 3, 1 << 40, "vae") for i in range(WORKFLOWS)
    }
    kept = Learnt().merged(Learnt(models, margins))
    assert len(to_text(kept).encode()) < MOST_BYTES / 2
