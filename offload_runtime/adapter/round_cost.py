"""Whether a component takes the room of others for several uses in a row, under ComfyUI's legacy memory manager."""

from __future__ import annotations

import weakref
from typing import Any

import comfy.model_management as mm

from ..engine import parameter_bytes
from ..policy.rounds import Cost, legacy_cost
from .record import record_of


class RoundCost:
    """What the next uses of one patcher cost, streamed or moved in whole.

    Args:
        patcher: a legacy patcher that loads to an accelerator.
        pinned: whether its layers are copied from pinned memory.
    """

    def __init__(self, patcher: Any, pinned: bool) -> None:
        self._patcher = weakref.ref(patcher)
        self._pinned = pinned
        self._rounds = record_of(patcher.model).rounds
        self._whole = parameter_bytes(patcher.model)
        self._planned = Cost(0, 0, 1, 1)

    def will_begin(self, streamed: int, slots: int) -> bool:
        """Tell whether a use that begins now takes the room, and plan with what it costs now.

        Args:
            streamed: bytes that are copied at each use otherwise.
            slots: bytes of slots that what does not fit is copied through.
        """
        self._planned = self._now(max(0, streamed), slots)
        return self._rounds.would_begin(self._planned)

    def begin(self) -> bool:
        """Note that the use begins that was planned last; tell whether it takes the room."""
        return self._rounds.begin(self._planned)

    def _now(self, streamed: int, slots: int) -> Cost:
        patcher: Any = self._patcher()
        packed = record_of(patcher.model).masters.weights.packed_bytes
        loaded, beside = int(patcher.model.model_loaded_weight_memory), self._beside()
        free = int(mm.get_free_memory(patcher.load_device) - mm.minimum_inference_memory())
        room = loaded + free + beside
        fits = self._whole if room > self._whole else max(loaded, room - slots)
        spared = max(0, streamed - (self._whole - fits))
        return legacy_cost(
            streamed=spared,
            unpacked=max(0, streamed - packed),
            pinned=self._pinned,
            moved=max(fits - loaded, spared),
            evicted=min(max(0, int((fits - loaded) * 1.1) - free), beside),
        )

    def _beside(self) -> int:
        """Return the bytes of other models on the device."""
        patcher: Any = self._patcher()
        others = (
            other
            for loaded in mm.current_loaded_models
            if (other := loaded.model) is not None and other.model is not patcher.model
        )
        return sum(int(o.loaded_size()) for o in others if o.load_device == patcher.load_device)
