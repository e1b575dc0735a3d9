"""ComfyUI's progress bar of the node that runs, for what of ours takes long."""

from __future__ import annotations

from collections.abc import Callable

import comfy.utils

Step = Callable[[int], None]
"""Takes how many bytes have been done since the last time."""

_LONG = 256 * 1024**2
"""Bytes that are not worth a bar: they are read, written or pinned in well under a second."""


def show_layer(number: int, count: int) -> None:
    """Move the bar to one of the layers of a component."""
    comfy.utils.ProgressBar(count).update_absolute(number, count)


def progress(total: int) -> Step:
    """Return what moves the bar, or does nothing for what is done at once.

    Args:
        total: the bytes that are to be done; more than those leave the bar where it ends.
    """
    if total < _LONG:
        return lambda more: None
    bar, done = comfy.utils.ProgressBar(total), 0

    def step(more: int) -> None:
        nonlocal done
        done = min(total, done + more)
        bar.update_absolute(done, total)

    return step
