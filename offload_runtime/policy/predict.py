"""How long a use is going to take, from those that were measured."""

from __future__ import annotations

from collections.abc import Sequence

from .learnt import ALIKE, Timed


def seconds_with(computing: float, waiting: float, moved: int, moves: int, link: float = 0.0) -> float:
    """Return how long a use takes that moves another number of bytes than a measured one did.

    Copies run beside computing, and what takes longer counts. What the measured use took beyond that (the first layer
    has nothing to hide behind) shrinks with what is moved.

    Args:
        computing: the seconds that the measured use took, waiting included.
        waiting: the seconds of those in which it waited for weights.
        moved: the bytes that it moved.
        moves: the bytes that are to be moved, such as those of the layers that are not to stay on the device.
        link: bytes that are copied in a second; 0 for "as the measured use shows", which is too slow where that did
            not wait for them.
    """
    if moves == moved:
        return computing
    busy = max(0.0, computing - waiting)
    if not moved:
        return max(busy, moves / link) if link else computing
    speed = max(link, moved / computing)
    beyond = computing - max(busy, moved / speed)
    return max(busy, moves / speed) + max(0.0, beyond) * min(1.0, moves / moved)


def predicted(
    known: Sequence[Timed], use: Timed, size: int, passes: int | None = None, link: float = 0.0
) -> float | None:
    """Return the seconds that a use should take, or None where nothing like it was measured.

    That of a comparable use counts: of the same input, placed the same way, with as much of the component on the
    device. One of another number of calls counts by what each took; one that had more or less of it there is adjusted
    by what that moves, where that is known: of what ComfyUI brings it is not, nor what a first run costs beyond that.

    Args:
        known: what earlier uses took, the latest last.
        use: the use; what it took itself is not looked at.
        size: the bytes of the component.
        passes: how often its layers run in a call.
        link: bytes that the machine copies in a second, where somebody has measured it; 0 for "as these uses show".
    """
    comparable = [took for took in known if _is_comparable(took, use, size)]
    if not comparable or not use.calls:
        return None

    def distance(took: Timed) -> tuple[int, bool, bool]:
        apart = abs(took.resident - use.resident)
        return apart if apart > size * ALIKE else 0, took.first != use.first, took.calls != use.calls

    nearest = min(reversed(comparable), key=distance)
    seconds, waiting = nearest.computing / nearest.calls, nearest.waiting / nearest.calls
    more = (nearest.resident - use.resident) * (passes or 1)
    if not distance(nearest)[0]:
        return seconds * use.calls
    moved = nearest.moved // nearest.calls
    if not moved:
        return None  # ComfyUI brings what is missing, and nobody says what it waited for
    link = max(link, *(took.moved / took.computing for took in comparable))
    return use.calls * seconds_with(seconds, waiting, moved, max(0, moved + more), link)


def _is_comparable(took: Timed, use: Timed, size: int) -> bool:
    """Tell whether a run says anything of another one."""
    if not took.calls or not took.computing or (took.resolution, took.way) != (use.resolution, use.way):
        return False
    return took.first == use.first or took.moved > 0 or took.resident >= size * (1 - ALIKE)
