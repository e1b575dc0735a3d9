"""What one use is expected to run, and where in it the use is.

The last use predicts the next one; before there is one, a guess does, which is corrected whenever it is wrong.
A wrong prediction costs one wait, and falls in with what really runs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence

from .guess import Group, Guess


class Prediction:
    """Follows a use through the order that is expected of it.

    Args:
        groups: the layers, in registration order.
        last: what ran in the last use, or nothing if that is not known.

    Attributes:
        expected: the units in the order that is expected now; another list whenever the guess was wrong.
    """

    def __init__(self, groups: Sequence[Group], last: Sequence[int] = ()) -> None:
        self._guess = None if last else Guess(groups)
        self.expected = last if self._guess is None else self._guess.following()
        self._cursor = -1  # where in it the use is
        self._unnoted: list[int] = []  # what ran as guessed since the last correction
        places: defaultdict[int, list[int]] = defaultdict(list)
        for place, unit in enumerate(last):
            places[unit].append(place)
        self._places = dict(places)  # unit → where it ran in the last use

    def follow(self, unit: int) -> int:
        """Hear that a unit runs now; return its place in what is expected, or -1 when it has none."""
        following = self._cursor + 1
        if following < len(self.expected) and self.expected[following] == unit:
            self._cursor = following
        elif self._guess is None:
            self._cursor = self._find(unit)
            return self._cursor
        elif self.expected and self.expected[0] == unit:  # all of it runs once more
            self._cursor = 0
            self._unnoted.clear()
        else:
            for ran in (*self._unnoted, unit):
                self._guess.note(ran)
            self._unnoted.clear()
            self.expected, self._cursor = [unit, *self._guess.following()], 0
            return 0
        if self._guess is not None:
            self._unnoted.append(unit)
        return self._cursor

    def _find(self, unit: int) -> int:
        """Return the nearest place of a unit in the last use, looking ahead first; -1 when it has none."""
        places = self._places.get(unit)
        if places is None:
            return -1
        ahead = bisect_left(places, self._cursor + 1)
        return places[ahead if ahead < len(places) else 0]
