"""A guess at the order of a use that no earlier one predicts, corrected by what runs.

Registration order is where it starts. It is often wrong: a block may call its gate before what it registered
first, a decoder may run its layers last to first. But layers are alike: what one has shown of the order inside it
holds for the next ones, and how one layer followed another goes on like that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple


class Group(NamedTuple):
    """A layer and its parts.

    Attributes:
        units: their numbers, the layer first.
        kind: layers of one kind run their parts in the same order.
        stack: what the layer is one of.
    """

    units: tuple[int, ...]
    kind: Hashable
    stack: str


class Guess:
    """Learns from the units that run, and tells which ones follow.

    Args:
        groups: every layer, in registration order.
    """

    def __init__(self, groups: Sequence[Group]) -> None:
        self._groups = groups
        self._heads = {group.units[0]: index for index, group in enumerate(groups)}
        self._stacks: defaultdict[str, list[int]] = defaultdict(list)
        self._places: list[int] = []  # group → its place in its stack
        for index, group in enumerate(groups):
            self._places.append(len(self._stacks[group.stack]))
            self._stacks[group.stack].append(index)
        self._orders: dict[
            Hashable, list[int]
        ] = {}  # kind → the order of a group's units, by place in the group
        self._steps: dict[
            str, tuple[str, int]
        ] = {}  # stack → the stack of what followed, and how much further on
        self._current = self._first = -1  # the group that runs, and the first one of this pass
        self._inside: list[int] = []  # what has run of the group that runs, by place in it
        self._ran: set[int] = set()  # groups that have run in this pass

    def note(self, unit: int) -> None:
        """Hear that a unit runs."""
        group = self._heads.get(unit)
        if group is not None:
            self._begin(group)
        elif self._current >= 0 and unit in self._groups[self._current].units:
            self._inside.append(self._groups[self._current].units.index(unit))

    def following(self) -> list[int]:
        """Return the units that are expected after the last one that ran."""
        found: list[int] = []
        if self._current >= 0:
            group = self._groups[self._current]
            rest = self._rest(group)
            self._orders[group.kind] = [*self._inside, *rest]
            found += [group.units[place] for place in rest]
        for index in self._next_groups():
            units = self._groups[index].units
            found += [units[place] for place in self._orders.get(self._groups[index].kind, range(len(units)))]
        return found

    def _begin(self, group: int) -> None:
        if self._current >= 0:
            before = self._groups[self._current]
            if len(self._inside) > 1:  # a layer that is on the device shows nothing of its parts
                self._orders[before.kind] = self._inside
            stack = self._groups[group].stack
            self._steps[before.stack] = stack, self._places[group] - self._places[self._current]
        if group == self._first or self._first < 0:  # a pass begins
            self._first = group
            self._ran.clear()
        self._ran.add(group)
        self._current, self._inside = group, [0]

    def _rest(self, group: Group) -> list[int]:
        """Return what is left of the group that runs."""
        order: Sequence[int] = self._orders.get(group.kind, range(len(group.units)))
        done = len(self._inside)
        if list(order[:done]) == self._inside:
            return list(order[done:])
        return [place for place in order if place not in self._inside]

    def _next_groups(self) -> Iterator[int]:
        ran, group = set(self._ran), self._current
        while True:
            following = next((g for g in self._candidates(group) if g not in ran), None)
            if following is None:
                following = next((g for g in range(len(self._groups)) if g not in ran), None)
            if following is None:
                return
            yield following
            ran.add(following)
            group = following

    def _candidates(self, group: int) -> Iterator[int]:
        """Yield what may follow a group, the likeliest first."""
        if group < 0:
            return
        stack, place = self._groups[group].stack, self._places[group]
        for other, step in (self._steps.get(stack, (stack, 1)), (stack, 1), (stack, -1)):
            if 0 <= place + step < len(self._stacks[other]):
                yield self._stacks[other][place + step]
