"""What a person could set, from what a run has shown: room for what lacked it, or else less waiting."""

from __future__ import annotations

from .giving_room import makes_room
from .lifting import lifts
from .suggestions import MOST, RunFacts, Suggestion


def suggest(run: RunFacts) -> tuple[Suggestion, ...]:
    """Return what a person could set, the best first; nothing where nothing was measured to help."""
    return tuple((makes_room(run) or lifts(run))[:MOST])
