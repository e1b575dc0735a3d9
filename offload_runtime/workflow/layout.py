"""Where inserted nodes stand: beside the node that they belong to, over no other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

GAP = 40.0
TITLE = 30.0
LOADER_SIZE = (280.0, 190.0)
OTHER_MODELS_SIZE = (400.0, 520.0)
POLICY_SIZE = (380.0, 180.0)
DETOUR = 150.0
"""How much farther away a place beside a node may be than one above or below it, whose links have to turn back."""


class Box(NamedTuple):
    """What a node covers, with its title, in canvas units."""

    left: float
    top: float
    right: float
    bottom: float

    def covers(self, other: Box) -> bool:
        """Tell whether the two come closer to each other than a gap."""
        return (
            self.left < other.right + GAP
            and other.left < self.right + GAP
            and self.top < other.bottom + GAP
            and other.top < self.bottom + GAP
        )


def box_of(node: Mapping[str, Any]) -> Box:
    """Return what a node of a workflow file covers; positions are kept as lists, or as objects of old."""
    x, y = _pair(node.get("pos"), (0.0, 0.0))
    width, height = _pair(node.get("size"), (200.0, 100.0))
    if (node.get("flags") or {}).get("collapsed"):
        height = 0.0
    return Box(x, y - TITLE, x + width, y + height)


def free_place(
    boxes: Iterable[Box], near: Box, size: tuple[float, float], *, before: bool = False
) -> tuple[float, float]:
    """Return the position of a node of some size that is the nearest beside another one, and over no other.

    Args:
        boxes: what is covered.
        near: the other one's.
        size: width and height without the title.
        before: to its left, as for what leads to it; otherwise to its right.
    """
    there = list(boxes)
    width, height = size[0], size[1] + TITLE
    places = []
    beside = near.left - width - 2 * GAP if before else near.right + 2 * GAP
    for left, detour in ((beside, 0.0), (near.left, DETOUR)):
        column = [box for box in there if box.left < left + width + GAP and left < box.right + GAP]
        tops = [near.top]
        for box in column:
            tops += [box.bottom + 1.5 * GAP, box.top - 1.5 * GAP - height]
        for top in tops:
            mine = Box(left, top, left + width, top + height)
            if not any(mine.covers(box) for box in column):
                places.append((abs(top - near.top) + detour, left, top))
    _, left, top = min(places)
    return float(round(left)), float(round(top + TITLE))


def _pair(value: Any, default: tuple[float, float]) -> tuple[float, float]:
    if isinstance(value, Mapping):
        value = [value.get("0"), value.get("1")]
    if (
        isinstance(value, (list, tuple))
        and len(value) >= 2
        and all(isinstance(n, (int, float)) for n in value[:2])
    ):
        return float(value[0]), float(value[1])
    return default
