"""How far a check has come, and the way to end it."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[float, str], None]
"""Told how much is done, from 0 to 1, and what is done next; what it raises ends the check."""

_EACH = 0.04
"""How much of the rest of a part one step is: nobody knows how many there will be."""


class Steps:
    """Counts the steps of parts.

    Attributes:
        stopped: what ended the check, if the one who is told of the progress did.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._name = ""
        self._done = self._until = 0.0
        self.stopped: BaseException | None = None

    def begin(self, name: str, until: float) -> None:
        """Begin a part, at the end of which so much is done."""
        self._name, self._done, self._until = name, self._until, until
        self._tell()

    def step(self) -> None:
        """Tell that a step of the part begins."""
        self._done += _EACH * (self._until - self._done)
        self._tell()

    def end(self) -> None:
        """Tell that all is done."""
        self._done = 1.0
        self._tell()

    def _tell(self) -> None:
        try:
            self._progress(self._done, self._name)
        except BaseException as error:
            self.stopped = error
            raise
