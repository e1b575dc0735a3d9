"""How long a model's weights rest in their file: as long as anything of ours uses the model.

A loader that leaves the workflow often leaves together with the model, and that takes a moment. So the weights
are read into memory a little later, and only if somebody else still has the model; and if there is memory for
them. Where there is not, they stay where they are, and whoever uses one wakes it.

Weights that were laid into the file without being read are known by their checksum once the first use has read them.
Those that it does not read (tables, parts of which it has no need) are read when it is over.
"""

from __future__ import annotations

import _thread
import contextlib
import time
import weakref
from typing import Any

from torch import nn

from ..engine import MappedWeights
from ..errors import WeightFileError
from ..policy.host import RAM_RESERVE
from .host_memory import host_memory

DELAY = 2.0
"""Seconds between the end of the last use and the return to memory, and without a weight being read for the first time
that make a use be over."""


class Rest:
    """Lets the weights of one model rest in their file for as long as somebody uses them from there.

    Args:
        model: the model.
        weights: its weights that rest.
    """

    def __init__(self, model: weakref.ref[nn.Module], weights: MappedWeights) -> None:
        self._model = model
        self._weights = weights
        self._uses: list[weakref.finalize[..., Any]] = []
        self._reading = False

    def while_used_by(self, user: object) -> None:
        """Let them rest for as long as `user` lives."""
        use = weakref.finalize(user, self._leave)
        use.atexit = False
        self._uses[:] = [*(earlier for earlier in self._uses if earlier.alive), use]

    def read_the_rest_later(self) -> None:
        """Take the checksums of those weights that the first use does not read, when it is over."""
        if self._weights.unread and not self._reading:
            self._reading = True
            _thread.start_new_thread(self._read_the_rest, ())

    def _read_the_rest(self) -> None:
        before = None
        while (unread := self._weights.unread) != before:
            before = unread
            time.sleep(DELAY)
        self._reading = False
        if self._is_used():
            self._weights.take_checksums()

    def _leave(self) -> None:
        if not self._is_used():
            # Not a `Thread`: a finalizer may run inside of its locks.
            _thread.start_new_thread(self._bring_back, ())

    def _bring_back(self) -> None:
        time.sleep(DELAY)
        model = self._model()  # which shall not go in the middle
        if model is None:
            return
        if self._weights.resting_bytes <= host_memory().available - RAM_RESERVE:
            with contextlib.suppress(WeightFileError):  # whoever uses the weight hears of it
                self._weights.release_all(model.parameters(), unless=self._is_used)

    def _is_used(self) -> bool:
        return any(use.alive for use in list(self._uses))
