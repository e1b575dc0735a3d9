"""Place one object, as the loader node does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import models

from offload_runtime.adapter import Placements, apply_policy
from offload_runtime.policy import PlacementRow, Policy, Source, SourceKind

SOURCE = Source(SourceKind.NODE, "Placement Policy, node 1")


def policy(placement: str, *, vram_budget: str | None = None) -> Policy:
    """Ask the same placement for every kind of component."""
    selectors = ("text_encoder", "image_encoder", "vae", "dit")
    return Policy.from_widgets(
        SOURCE, vram_budget=vram_budget, placements=dict.fromkeys(selectors, placement)
    )


class PlacedObject:
    """A placed object and its row in the report."""

    def __init__(self, slot: str, value: Any, wish: Policy, files: list[Path]) -> None:
        out, self.placements = apply_policy(wish, {slot: value}, {slot: files}, Placements())
        self.value = out[slot]

    @property
    def patcher(self) -> Any:
        """The patcher inside the placed object."""
        return models.patcher_of(self.value)

    @property
    def row(self) -> PlacementRow:
        """The row of the report, read now."""
        return self.placements.report().rows[0]


def place(family: models.Family, value: Any, wish: Policy, folder: Path | None = None) -> PlacedObject:
    """Place an object; with a folder, its weights are first written there, as the file it was loaded from."""
    files = (
        [models.save(models.patcher_of(value).model, folder / "model.safetensors")]
        if folder is not None
        else []
    )
    return PlacedObject(family.slot, value, wish, files)
