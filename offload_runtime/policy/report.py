"""The placement report: what was asked, what was applied, and why, for people and for programs."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from .arguments import Argument, Source, SourceKind
from .components import group_of
from .decision import Decision
from .facts import ComponentFacts
from .host_bytes import HostBytes
from .measured import CardPeak, Measured
from .quantities import format_bytes
from .settings import spell_value
from .suggestions import Suggestion

_WIDTH = 96
_INDENT = " " * len("  applied  ")

_ON_HOST = ("memory", "file")
"""The tiers that are not on a device."""


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
            words, or `comfyui` when the component is left to ComfyUI's own memory manager; "" when there is
            no live model.
        how: what that means on this machine, in words.
        why: the reason of the decision, and how far the machine could follow.
        device: where it computes, or computed in its last use if that was elsewhere; "" when nothing was read.
        vram_bytes: device memory that the plan counts for it.
        when_used: whether that is only taken while it is used, because ComfyUI pages its weights in then.
        host: the host tier that its layers are in, or the one that was decided for them; "" when there is none.
        host_why: why they are there.
        host_planned: where on the host its weights were to wait between its uses, or None where ComfyUI chooses.
        host_now: where on the host its weights are now, or None when there is no live model.
        tiers: where its weights are now: tier name → bytes.
        moved_bytes: bytes copied into layer slots since the component was attached.
        layer_runs: how many layer calls ran under the engine since then.
        measured: what was measured in the last run that it computed in, or None before the first one.
        overruled: the explicit values that lost, nearest first, with who set them.
        group: the group of the component, which is what a policy node has a widget for, or "".
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
    device: str = ""
    vram_bytes: int = 0
    host: str = ""
    host_why: str = ""
    host_planned: HostBytes | None = None
    host_now: HostBytes | None = None
    tiers: Mapping[str, int] = field(default_factory=dict)
    moved_bytes: int = 0
    layer_runs: int = 0
    measured: Measured | None = None
    overruled: tuple[str, ...] = ()
    group: str = ""
    when_used: bool = False

    @property
    def there_bytes(self) -> int:
        """Device memory that it takes now."""
        on_host = (*_ON_HOST, "slot") if self.device == "cpu" else _ON_HOST
        return sum(count for tier, count in self.tiers.items() if tier not in on_host)

    @property
    def planned(self) -> str:
        """The device memory that the plan counts for it, for people."""
        size = format_bytes(self.vram_bytes)
        return f"{size} when used" if self.when_used and self.vram_bytes else size

    @classmethod
    def of(
        cls,
        facts: ComponentFacts,
        decision: Decision,
        *,
        applied: str = "",
        how: str = "",
        device: str = "",
        host: str = "",
        host_why: str = "",
        host_now: HostBytes | None = None,
        tiers: Mapping[str, int] | None = None,
        moved_bytes: int = 0,
        layer_runs: int = 0,
        measured: Measured | None = None,
    ) -> PlacementRow:
        """Return the row of a decision, with what was read from the live model if there is one."""
        return cls(
            component=facts.name,
            model=facts.model,
            bytes=facts.bytes,
            asked=str(decision.asked or "auto"),
            asked_by=str(decision.source or ""),
            decided=str(decision.placement),
            applied=applied,
            how=how,
            why=decision.why,
            device=device,
            vram_bytes=decision.planned_bytes,
            host=host or str(decision.host_tier or ""),
            host_why=host_why or decision.host_reason,
            host_planned=decision.host_bytes,
            host_now=host_now,
            tiers=tiers or {},
            moved_bytes=moved_bytes,
            layer_runs=layer_runs,
            measured=measured,
            overruled=tuple(f"{_spelled(lost)} from {lost.asked_by}" for lost in decision.overruled),
            group=group_of(facts.name) or "",
            when_used=bool(facts.can.keeper),
        )

    def lines(self) -> list[str]:
        """Return the component's block of the report text."""
        tiers = " · ".join(f"{tier} {format_bytes(count)}" for tier, count in self.tiers.items() if count)
        asked = f"{self.asked} ({self.asked_by})" if self.asked_by else self.asked
        if self.decided != self.asked:
            asked += f" → {self.decided}"
        block = [
            f"{self.component} · {self.model} · {format_bytes(self.bytes)}",
            f"  asked    {asked}",
            *_wrapped(f"  applied  {self.applied or '-'}: {self.how}"),
            *_wrapped(f"  why      {self.why}"),
            *(_wrapped(f"  host     {self.host}: {self.host_why}") if self.host else []),
            f"  weights  {tiers or 'none loaded'}",
            *_wrapped(f"  memory   {self._on_host()}"),
        ]
        if self.overruled:
            block += _wrapped(f"  over     {', '.join(self.overruled)}")
        if self.measured is not None:
            block += _wrapped(f"  measured {', '.join(self.measured.says())}")
        return block

    def _on_host(self) -> str:
        """Say what host memory its weights were to take, and what they take."""
        if self.host_now is None:
            return f"planned {self.host_plan}"
        now = str(self.host_now)
        return f"{now}, as planned" if now == self.host_plan else f"planned {self.host_plan}; now {now}"

    @property
    def host_plan(self) -> str:
        """What host memory its weights were to take between its uses, in words."""
        return str(self.host_planned) if self.host_planned is not None else "ComfyUI's choice"


def _spelled(argument: Argument) -> str:
    return f"{argument.setting.key} {spell_value(argument.setting, argument.value)}"


def _wrapped(line: str) -> list[str]:
    return textwrap.wrap(
        line, _WIDTH, subsequent_indent=_INDENT, break_long_words=False, break_on_hyphens=False
    )


def decision_table(rows: Sequence[PlacementRow]) -> str:
    """Return the decisions as a table of aligned columns.

    What is applied, and what is on the device now, have columns when there are live models; they may lag behind what
    is planned.
    """
    live = any(row.applied for row in rows)
    columns = [
        ("component", *(row.component for row in rows)),
        ("weights", *(format_bytes(row.bytes) for row in rows)),
        ("asked", *(row.asked for row in rows)),
        ("decided", *(row.decided for row in rows)),
        ("applied", *(row.applied or "-" * live for row in rows)),
        ("planned VRAM", *(row.planned for row in rows)),
        ("VRAM now", *(format_bytes(row.there_bytes) if live else "" for row in rows)),
        ("host", *(row.host or "-" for row in rows)),
    ]
    aligned = [
        [cell.ljust(max(map(len, column))) for cell in column] for column in columns if any(column[1:])
    ]
    return "\n".join("  ".join(line).rstrip() for line in zip(*aligned, strict=True))


@dataclass(frozen=True)
class Report:
    """The report of one workflow.

    Attributes:
        machine: the machine, one line for people.
        rows: one per component, in the order in which they were attached.
        peaks: what was measured → bytes, such as `process memory`.
        began: when the run began, in seconds since 1970; 0 where nothing has run.
        card: the device when the most of it was in use, or None where nobody counts.
        notes: what else a person should know.
        suggestions: what a person could set, from what was measured.
    """

    machine: str
    rows: tuple[PlacementRow, ...]
    peaks: Mapping[str, int] = field(default_factory=dict)
    began: float = 0.0
    card: CardPeak | None = None
    notes: tuple[str, ...] = ()
    suggestions: tuple[Suggestion, ...] = ()

    def text(self) -> str:
        """Return the report as readable text."""
        if self.rows:
            blocks = [self.machine, decision_table(self.rows), *("\n".join(row.lines()) for row in self.rows)]
        else:
            blocks = [
                self.machine,
                "No component is placed: connect the placements output of a Layerwise Offload Loader.",
            ]
        peaks = [self.card.text()] if self.card is not None else []
        peaks += [f"peak {what}: {format_bytes(count)}" for what, count in self.peaks.items()]
        if peaks:
            blocks.append("\n".join(peaks))
        blocks += [
            "\n".join(found for line in one.lines() for found in _wrapped(line)) for one in self.suggestions
        ]
        blocks.extend(self.notes)
        return "\n\n".join(blocks)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain JSON values."""
        return asdict(self) | {"suggestions": [suggestion.to_dict() for suggestion in self.suggestions]}


def unused_notes(unused: Iterable[Argument]) -> tuple[str, ...]:
    """Say which values of a policy are for no component of the workflow; preferences of the user apart.

    Args:
        unused: the arguments, as `Policy.unused` returns them.
    """
    grouped: dict[tuple[str, Source], dict[str, None]] = {}
    for argument in unused:
        if argument.source.kind > SourceKind.COMMAND_LINE:
            grouped.setdefault((argument.selector, argument.source), {})[_spelled(argument)] = None
    return tuple(
        f"{selector} is not in this workflow, so {', '.join(values)} from {source} had nothing to do."
        for (selector, source), values in grouped.items()
    )
