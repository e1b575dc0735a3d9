"""The last use predicts the next one; before there is one, what runs corrects the guess."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offload_runtime.engine.guess import Group
from offload_runtime.engine.prediction import Prediction

LAYERS, PARTS = 6, 4


def groups(*stacks: int, parts: int = 0) -> list[Group]:
    """Layers in stacks of these lengths, each with so many parts."""
    found, layers = [], sum(stacks)
    for stack, length in enumerate(stacks):
        for _ in range(length):
            layer = len(found)
            first = layers + layer * parts
            units = (layer, *range(first, first + parts))
            found.append(Group(units, tuple(range(parts)), f"stack{stack}"))
    return found


def wrong(prediction: Prediction, order: list[int]) -> list[int]:
    """Run an order; return at which steps something else had been expected."""
    missed = []
    for step, unit in enumerate(order):
        cursor = prediction._cursor
        expected = prediction.expected[cursor + 1 : cursor + 2]
        if list(expected) != [unit]:
            missed.append(step)
        position = prediction.follow(unit)
        assert prediction.expected[position] == unit
    return missed


@given(st.lists(st.integers(0, 4), min_size=1, max_size=30))
def test_a_use_that_repeats_is_followed_step_by_step(order: list[int]) -> None:
    prediction = Prediction(groups(5), order)
    assert [prediction.follow(unit) for unit in order] == list(range(len(order)))
    assert list(prediction.expected) == order


def test_a_skipped_layer_is_passed_over_and_an_unknown_one_has_no_place() -> None:
    prediction = Prediction(groups(8), [0, 1, 2, 3])
    assert [prediction.follow(unit) for unit in (0, 2, 3)] == [0, 2, 3]
    assert prediction.follow(7) == -1
    assert prediction.follow(1) == 1


def test_the_first_guess_is_registration_order() -> None:
    prediction = Prediction(groups(2, parts=2))
    assert list(prediction.expected) == [0, 2, 3, 1, 4, 5]
    assert wrong(prediction, [0, 2, 3, 1, 4, 5]) == []


FORWARD = list(range(LAYERS))


@pytest.mark.parametrize(
    ("stacks", "order", "most"),
    [
        ((LAYERS,), FORWARD, 0),
        ((LAYERS,), FORWARD[::-1], 1),
        ((LAYERS,), [0, 2, 4], 1),
        ((LAYERS,), FORWARD * 3, 2),
        ((LAYERS,), FORWARD[::-1] * 3, 3),
        ((3, 3), [0, 3, 1, 4, 2, 5], 2),
        ((3, 3), [2, 1, 0, 5, 4, 3], 2),
    ],
    ids=["forward", "reverse", "skips", "loop", "reverse loop", "interleaved", "two stacks reversed"],
)
def test_an_order_of_layers_goes_on_as_it_began(stacks: tuple[int, ...], order: list[int], most: int) -> None:
    """Each mistake is one wait; a pass that begins again is one, too."""
    assert len(wrong(Prediction(groups(*stacks)), order)) <= most


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_what_one_layer_shows_of_its_order_holds_for_the_next_ones(seed: int, *, backwards: bool) -> None:
    """Parts may run in another order than they are registered in, several times, or never."""
    rng = random.Random(seed)
    inside = [rng.randrange(PARTS) for _ in range(rng.randint(1, 6))]
    layers = groups(LAYERS, parts=PARTS)
    ordered = layers[::-1] if backwards else layers
    order = [unit for g in ordered for unit in (g.units[0], *(g.units[1 + place] for place in inside))]
    first = 1 + len(inside)
    assert [step for step in wrong(Prediction(layers), order) if step > first] == []


def test_a_layer_of_another_kind_keeps_its_own_order() -> None:
    layers = groups(4, parts=2)
    layers[1] = layers[1]._replace(kind="other")
    order = [0, 5, 4, 1, 6, 7, 2, 9, 8, 3, 11, 10]
    assert [step for step in wrong(Prediction(layers), order) if step > 2] == []


def test_a_layer_on_the_device_shows_nothing_of_the_order_inside_the_others() -> None:
    """Nobody hears of the parts of one that stays, and those of the next one run as in the one before it."""
    layers = groups(LAYERS, parts=2)
    order = [unit for g in layers for unit in (g.units if g.units[0] % 2 == 0 else g.units[:1])]
    after_one_that_stays = [order.index(layer) for layer in range(2, LAYERS, 2)]
    assert [step for step in wrong(Prediction(layers), order) if step not in after_one_that_stays] == []


@given(st.lists(st.integers(0, LAYERS * (1 + PARTS) - 1), max_size=60))
def test_whatever_runs_has_a_place_in_what_is_expected(order: list[int]) -> None:
    wrong(Prediction(groups(LAYERS, parts=PARTS)), order)
