"""What the models beside a component leave it.

A resident weight saves its copy in the next use, if it is still there. Where ComfyUI evicts it in between, because
a model beside it needs the room whenever it runs, the weight costs a way back to the host and saves nothing. So no
more than what such a model has left is kept, for as long as the same models are loaded.
"""

from __future__ import annotations

from typing import Any

import comfy.model_management as mm


class Pressure:
    """Remembers beside which models one model lost weights, and how many bytes it was left.

    Attributes:
        left: bytes of weights that survived the last eviction.
    """

    def __init__(self) -> None:
        self.left = 0
        self._at_load: frozenset[int] = frozenset()
        self._then: frozenset[int] = frozenset()

    def loads(self, model: Any) -> None:
        """Hear that a model is about to be loaded."""
        self._at_load = _beside(model)

    def evicted(self, left: int) -> None:
        """Hear that ComfyUI took weights of the model, and how many bytes it left."""
        # Those that were there before. One that is loaded for the first time asks for more than it will ever again.
        self.left, self._then = left, self._at_load

    def holds(self, model: Any) -> bool:
        """Tell whether the same models as then are loaded beside it, so that more would be taken again."""
        return bool(self._then) and self._then == _beside(model)


def _beside(model: Any) -> frozenset[int]:
    patchers = (loaded.model for loaded in mm.current_loaded_models)
    return frozenset(
        id(patcher.model) for patcher in patchers if patcher is not None and patcher.model is not model
    )
