"""Layers and the parts of split layers, each in an area of its own, and what a layer is split into."""

from __future__ import annotations

from itertools import pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from offload_runtime.engine import Layer
from offload_runtime.engine.areas import Areas
from offload_runtime.engine.slots import ALIGNMENT
from offload_runtime.engine.units import Units

LAYERS = 3
blocks = st.integers(0, 8).map(lambda count: count * ALIGNMENT)


@given(
    sizes=st.lists(blocks, min_size=9, max_size=9),
    runs=st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(0, 5), max_size=4)), max_size=8),
    budget=st.integers(0, 40 * ALIGNMENT),
    known=st.booleans(),
)
def test_what_runs_is_never_in_the_way_of_what_runs_inside_it(
    sizes: list[int], runs: list[tuple[int, list[int]]], budget: int, known: bool
) -> None:
    areas = Areas(sizes, LAYERS, budget)
    assert areas.capacity <= max(budget, max(sizes[:LAYERS]) + max(sizes[LAYERS:]))
    trace = [unit for layer, parts in runs for unit in (layer, *(LAYERS + part for part in parts))]
    areas.expect(trace if known else [])
    held: dict[int, tuple[int, int]] = {}

    def run(unit: int, running: list[int], position: int) -> None:
        fetches = []
        if unit not in held and sizes[unit]:
            fetches.append(areas.demand(unit, position))
        for fetch in (*fetches, *areas.ahead([*running, unit], position)):
            assert not set(fetch.evicted) & {*running, *([unit] if fetch.layer != unit else [])}
            for other in fetch.evicted:
                held.pop(other, None)
            held[fetch.layer] = fetch.region
            assert all(a[1] <= b[0] for a, b in pairwise(sorted(held.values())))
            assert 0 <= fetch.region.start <= fetch.region.end <= areas.capacity

    position = -1
    for layer, parts in runs:
        position += 1
        run(layer, [], position if known else -1)
        for part in parts:
            position += 1
            run(LAYERS + part, [layer], position if known else -1)
            assert layer in held or not sizes[layer]


class Block(nn.Module):
    """Two large maps, a norm and a gate of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(64, 256), nn.Linear(256, 64), nn.LayerNorm(64)
        self.gate = nn.Parameter(torch.zeros(64))


def layers(count: int = 2) -> list[Layer]:
    found = [Block() for _ in range(count)]
    return [Layer(f"blocks.{i}", b, (b.up, b.down, b.norm)) for i, b in enumerate(found)]


def test_whole_layers_where_there_is_room() -> None:
    given_layers = layers()
    units = Units(given_layers)
    assert [sum(p.nbytes for p in unit.parameters()) for unit in units.all[:2]] == [
        layer.bytes for layer in given_layers
    ]
    assert not any(unit.entries for unit in units.all[2:])


def test_a_layer_is_split_until_what_is_left_is_small() -> None:
    units = Units(layers(), room=150_000)
    left = [{name for _, name in unit.entries} for unit in units.all]
    assert left[0] == {"weight", "bias", "gate"}, "the norm is not worth a copy of its own"
    assert [len(unit.entries) for unit in units.all] == [3, 3, 2, 2, 0, 2, 2, 0]
    assert [group.units for group in units.groups] == [(0, 2, 3), (1, 5, 6)]


def test_every_weight_is_in_one_unit() -> None:
    for room in (None, 0, 1_000, 150_000, 1 << 40):
        given_layers = layers(3)
        entries = [(id(e), name) for unit in Units(given_layers, room).all for e, name in unit.entries]
        assert len(entries) == len(set(entries)) == 3 * 7


def test_a_part_that_two_layers_share_is_one_unit() -> None:
    one, other = layers()
    other.module.up = one.module.up
    other = Layer(other.name, other.module, (one.module.up, other.module.down))
    units = Units([one, other], room=0)
    assert len({unit.module for unit in units.all}) == len(units.all) == 2 + 4
    assert [group.units for group in units.groups] == [(0, 2, 3, 4), (1, 2, 5)]
