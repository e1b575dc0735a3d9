"""The components of a workflow as they were placed: what travels on a `PLACEMENTS` link to the report."""

from __future__ import annotations

import weakref
from collections import Counter
from dataclasses import dataclass

from torch import nn

from ..engine import Ledger, mapped_weights, tensor_bytes
from ..policy import ComponentFacts, Decision, PlacementRow, Report
from . import hardware
from .backends import Backend


class Placed:
    """One placed component. Refers to its model weakly, so that a kept report keeps no model."""

    def __init__(
        self, facts: ComponentFacts, decision: Decision, backend: Backend, ledger: Ledger, model: nn.Module
    ) -> None:
        self.facts = facts
        self.decision = decision
        self._backend = backend
        self._ledger = ledger
        self._model = weakref.ref(model)

    def row(self) -> PlacementRow:
        """Read the component's row of the report from the live model."""
        asked, applied = self.decision.asked, self._backend.applied()
        return PlacementRow(
            component=self.facts.name,
            model=self.facts.model,
            bytes=self.facts.bytes,
            asked=asked.value if asked is not None else "auto",
            asked_by=str(self.decision.source) if self.decision.source is not None else "",
            decided=self.decision.placement.value,
            applied=applied.word,
            how=applied.how,
            why=self.decision.reason,
            tiers=self._tiers(),
            moved_bytes=sum(self._ledger.moved.values()),
            layer_runs=self._ledger.layer_runs,
        )

    def _tiers(self) -> dict[str, int]:
        model = self._model()
        if model is None:
            return {}
        mapped = mapped_weights(model)
        tiers: Counter[str] = Counter()
        for parameter in model.parameters():
            if parameter.device.type != "cpu":
                tier = str(parameter.device)
            else:
                tier = "file" if mapped.holds(parameter) else "memory"
            tiers[tier] += tensor_bytes(parameter)
        tiers["slot"] += self._ledger.slot_bytes
        return dict(tiers)


@dataclass(frozen=True)
class Placements:
    """All components placed so far in a workflow, in order; loaders chain by adding to it."""

    placed: tuple[Placed, ...] = ()

    @property
    def names(self) -> frozenset[str]:
        """The component names in use."""
        return frozenset(p.facts.name for p in self.placed)

    @property
    def bytes(self) -> int:
        """The size of all components' weights."""
        return sum(p.facts.bytes for p in self.placed)

    def report(self) -> Report:
        """Read the report of all components from the live models."""
        machine = hardware.machine_facts()
        return Report(
            machine=hardware.machine_line(machine),
            rows=tuple(p.row() for p in self.placed),
            peaks=hardware.peaks(machine),
        )
