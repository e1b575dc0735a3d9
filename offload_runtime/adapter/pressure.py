"""What the models beside a component leave it.

A resident weight saves its copy in the next use, if it is still there. Where ComfyUI evicts it in between, because
a model beside it needs the room whenever it runs, the weight costs a way back to the host and saves nothing. So no
more than what such a model has left is kept, for as long as the same models are loaded.

ComfyUI takes more than that model needs later: a tenth of what it had still to load, and whole weights. What it
will ask for once all of it is there is known then, and what is free beyond that is taken back, once.
"""

from __future__ import annotations

import math
import weakref
from typing import Any

import comfy.model_management as mm

_MARGIN = 1.1
"""ComfyUI frees this many times what it is about to load."""


class Pressure:
    """Remembers beside which models one model lost weights, and how many bytes it was left.

    Attributes:
        left: bytes of weights that stay when those are loaded.
    """

    def __init__(self) -> None:
        self.left = 0
        self._asked = 0.0  # bytes that had to be free beside all weights
        self._at_load: frozenset[int] = frozenset()
        self._then: frozenset[int] = frozenset()
        self._gone: frozenset[int] | None = None  # beside which it was taken whole
        self._tried: set[frozenset[int]] = set()
        self._others: list[weakref.ref[Any]] = []

    def loads(self, patcher: Any, room: int, step: float) -> bool:
        """Hear that a model is about to be loaded; tell whether more of it may stay than it was left.

        It may once beside the same models: what is taken a second time would be so again.

        Args:
            patcher: its patcher.
            room: bytes that are free, or weights and slots of its own.
            step: how many bytes more it is worth.
        """
        self._at_load = _beside(patcher.model)
        others = _patchers(patcher)
        self._others = [weakref.ref(other) for other in others]
        if not self.holds(patcher.model) or self._then in self._tried:
            return False
        self._tried.add(self._then)
        more = room - self._asked - sum(map(_missing, others))
        if more < self.left + step:
            return False
        self.left = int(more)
        return True

    def asked_beside(self, patcher: Any, to_free: float) -> float:
        """Return how many bytes ComfyUI wants to be free beside all weights, when it frees so many more now."""
        there = {id(other.model) for other in _patchers(patcher)}
        others = [other for ref in self._others if (other := ref()) is not None]
        loading = [other for other in others if id(other.model) not in there]  # taken off the list for that
        free = float(mm.get_free_memory(patcher.load_device))
        return free + to_free - _MARGIN * sum(map(_missing, loading))

    def evicted(self, left: int, asked: float) -> None:
        """Hear that ComfyUI took weights of the model, how many bytes it left, and how many it wants to be free."""
        # Those that were there before. One that is loaded for the first time asks for more than it will ever again.
        self._asked = max(asked, self._asked) if self._then == self._at_load else asked
        self.left, self._then = left, self._at_load

    def gone(self) -> None:
        """Hear that ComfyUI took all of the model, and wanted more than that.

        The first time it may do so because another model comes anew. Two diffusion models that run in turn need
        as much at each prompt, and what is smaller goes before the one that has had its turn.
        """
        if self._gone == self._at_load:
            self.evicted(0, math.inf)
        self._gone = self._at_load

    def holds(self, model: Any) -> bool:
        """Tell whether the models of then are loaded beside it, so that more would be taken again.

        Others may be, too: a small one goes first when room is made, and so it is beside a model that is about to
        be loaded, and no more when it is.
        """
        return bool(self._then) and self._then <= _beside(model)


def _missing(patcher: Any) -> int:
    """Return the bytes of weights that are not on the device."""
    return max(0, int(patcher.model_size() - patcher.loaded_size()))


def _patchers(beside: Any) -> list[Any]:
    """Return the patchers that ComfyUI has loaded to a model's device beside it."""
    others = (loaded.model for loaded in mm.current_loaded_models if loaded.device == beside.load_device)
    return [other for other in others if other is not None and other.model is not beside.model]


def _beside(model: Any) -> frozenset[int]:
    patchers = (loaded.model for loaded in mm.current_loaded_models)
    return frozenset(
        id(patcher.model) for patcher in patchers if patcher is not None and patcher.model is not model
    )
