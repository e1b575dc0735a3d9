"""The placement report: what was asked, what was applied, and why, for people and for programs."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from .quantities import format_bytes

_WIDTH = 96


@dataclass(frozen=True)
class PlacementRow:
    """One component in the report. All sizes are bytes.

    Attributes:
        component: its component name.
        model: the class of the model.
        bytes: the size of its weights.
        asked: the explicit placement, or `auto`.
        asked_by: who set it, or "" for automatic.
        decided: the resolved placement.
        applied: the placement that is really in force, read back from the live model: one of the placement
            words, or `comfyui` when the component is left to ComfyUI's own memory manager.
        how: what that means on this machine, in words.
        why: the reason of the decision.
        tiers: where its weights are now: tier name → bytes.
        moved_bytes: bytes copied into layer slots since the component was attached.
        layer_runs: how many layer calls ran under the engine.
    """

    component: str
    model: str
    bytes: int
    asked: str
    asked_by: str
    decided: str
    applied: str
    how: str
    why: str
    tiers: Mapping[str, int] = field(default_factory=dict)
    moved_bytes: int = 0
    layer_runs: int = 0

    def lines(self) -> list[str]:
        """Return the component's block of the report text."""
        tiers = " · ".join(f"{tier} {format_bytes(count)}" for tier, count in self.tiers.items() if count)
        asked = f"{self.asked} ({self.asked_by})" if self.asked_by else self.asked
        if self.decided != self.asked:
            asked += f" → {self.decided}"
        block = [
            f"{self.component} · {self.model} · {format_bytes(self.bytes)}",
            f"  asked    {asked}",
            *_wrapped(f"  applied  {self.applied}: {self.how}"),
            *_wrapped(f"  why      {self.why}"),
            f"  weights  {tiers or 'none loaded'}",
        ]
        if self.layer_runs:
            block.append(f"  moved    {format_bytes(self.moved_bytes)} in {self.layer_runs} layer runs")
        return block


def _wrapped(line: str) -> list[str]:
    return textwrap.wrap(line, _WIDTH, subsequent_indent=" " * len("  applied  "), break_long_words=False)


@dataclass(frozen=True)
class Report:
    """The report of one workflow.

    Attributes:
        machine: the machine, one line for people.
        rows: one per component, in the order in which they were attached.
        peaks: what was measured → bytes, such as `process memory`.
        notes: what else a person should know.
    """

    machine: str
    rows: tuple[PlacementRow, ...]
    peaks: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def text(self) -> str:
        """Return the report as readable text."""
        blocks = [self.machine, *("\n".join(row.lines()) for row in self.rows)]
        if not self.rows:
            blocks.append(
                "No component is placed: connect the placements output of a Layerwise Offload Loader."
            )
        if self.peaks:
            blocks.append(
                "\n".join(f"peak {what}: {format_bytes(count)}" for what, count in self.peaks.items())
            )
        blocks.extend(self.notes)
        return "\n\n".join(blocks)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain JSON values."""
        return asdict(self)
