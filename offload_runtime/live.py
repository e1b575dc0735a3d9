"""What is done now for a component, for whoever watches a run; nobody does unless the server has said so.

Telling costs next to nothing: what is told is only put together when somebody wants to show it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

LOADING, STREAMING, COMPUTING = "loading", "streaming", "computing"

Told = Callable[[], dict[str, Any]]
"""Puts together what is done: `doing` and what belongs to it; without `doing`, nothing is done now."""

_listener: Callable[[Told], None] | None = None


def listen(listener: Callable[[Told], None] | None) -> None:
    """Have somebody hear of what is done, instead of who did before; None for nobody."""
    global _listener
    _listener = listener


def is_heard() -> bool:
    """Whether anybody listens."""
    return _listener is not None


def tell(told: Told) -> None:
    """Say what is done now. Called often, on any thread."""
    if _listener is not None:
        _listener(told)
