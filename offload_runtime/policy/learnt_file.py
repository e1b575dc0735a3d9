"""What was learnt as text, and back: JSON of plain numbers, with the version of its form."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, fields
from typing import Any, TypeVar

from .learnt import Learnt, Lesson, Timed
from .margin import Margin

VERSION = 1

MOST_BYTES = 4 << 20
"""A file that is larger is none of ours."""


def to_text(learnt: Learnt) -> str:
    """Return it as JSON."""
    kept = {
        "version": VERSION,
        "models": {key: asdict(lesson) for key, lesson in learnt.models.items()},
        "margins": {key: asdict(margin) for key, margin in learnt.margins.items()},
    }
    return json.dumps(kept, separators=(",", ":"))


def from_text(text: str) -> Learnt:
    """Read it again.

    Raises:
        ValueError: it is no such text, or of another version.
    """
    kept = json.loads(text)
    if not isinstance(kept, dict) or kept.get("version") != VERSION:
        raise ValueError(f"it is not of version {VERSION}")
    models, margins = kept.get("models"), kept.get("margins")
    if not isinstance(models, dict) or not isinstance(margins, dict):
        raise ValueError("it has no models or no margins")
    return Learnt(
        {key: _lesson(value) for key, value in models.items()},
        {key: _read(Margin, value) for key, value in margins.items()},
    )


def _lesson(value: Any) -> Lesson:
    if not isinstance(value, dict) or not isinstance(value.get("times"), list):
        raise ValueError("a model is no table with times")
    times = tuple(_read(Timed, took) for took in value["times"])
    demands = value.get("demands")
    if not isinstance(demands, list) or not all(map(_is_count, demands)):
        raise ValueError("the demands of a model are no numbers of bytes")
    return _read(Lesson, {**value, "demands": tuple(demands), "times": times})


_Read = TypeVar("_Read", Lesson, Margin, Timed)


def _read(kind: type[_Read], value: Any) -> _Read:
    """Return one of our classes from a table whose values are of its types."""
    if not isinstance(value, dict):
        raise ValueError(f"a {kind.__name__} is no table")
    for one in fields(kind):
        if one.name not in value or not _IS[str(one.type)](value[one.name]):
            raise ValueError(f"{one.name} of a {kind.__name__} is {value.get(one.name)!r:.50}")
    return kind(**{one.name: value[one.name] for one in fields(kind)})


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


def _is_count(value: object) -> bool:
    return isinstance(value, int) and _is_number(value)


def _is_tuple(value: object) -> bool:
    return isinstance(value, tuple)


_IS: dict[str, Callable[[object], bool]] = {
    "str": lambda value: isinstance(value, str),
    "bool": lambda value: isinstance(value, bool),
    "int": _is_count,
    "float": _is_number,
    "int | None": lambda value: value is None or _is_count(value),
    "tuple[int, ...]": _is_tuple,
    "tuple[Timed, ...]": _is_tuple,
}
"""The type of an attribute, as it is written → whether a value is of it; all numbers are at least 0."""
