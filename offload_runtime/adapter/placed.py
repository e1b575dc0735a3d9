"""The components of a workflow as they were placed: what travels on a `LAYERWISE_PLACEMENTS` link to the report."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import nn

from ..engine import Ledger
from ..engine.mapping import Areas
from ..policy import CardPeak, ComponentFacts, Decision, HostBytes, PlacementRow, Policy, Report, unused_notes
from . import hardware
from .backends import Backend, Follower
from .learning import learn
from .making_room import MakingRoom
from .record import record_of
from .runs import Peak, current_run
from .suggesting import suggestions_of
from .where import bytes_by_place, host_bytes, masters_of

if TYPE_CHECKING:
    from .standing import Standing


class Placed:
    """One placed component. Refers to its model weakly, so that a kept report keeps no model.

    Attributes:
        room: what is made for the workflow that it was placed in.
    """

    def __init__(
        self,
        facts: ComponentFacts,
        decision: Decision,
        backend: Backend,
        ledger: Ledger,
        model: nn.Module,
        node: str = "",
    ) -> None:
        self.facts = facts
        self.decision = decision
        self._backend = backend
        self._ledger = ledger
        self._model = weakref.ref(model)
        self._node = node
        record_of(model).uses.placed_as(facts.name, facts.bytes, ledger)
        self.room: MakingRoom | None = None
        self._name_way()

    def __str__(self) -> str:
        by = f"the loader of node {self._node}" if self._node else "an earlier loader"
        return f"{self.decision.placement} from {by}"

    @property
    def model(self) -> nn.Module | None:
        """The model, as long as somebody uses it."""
        return self._model()

    def follow(self, facts: ComponentFacts, decision: Decision) -> bool:
        """Carry another decision out from the next load on, if what the patchers carry can; return whether it can."""
        follows = isinstance(self._backend, Follower) and self._backend.take(decision)
        if follows:
            self.facts, self.decision = facts, decision
            self._name_way()
        return follows

    def on_use(self, decide: Callable[[], None]) -> None:
        """Have something called whenever ComfyUI is about to load the component."""
        if isinstance(self._backend, Follower):
            self._backend.decide_again = decide

    def _name_way(self) -> None:
        """Let what its runs take be remembered beside how it was placed."""
        if (model := self._model()) is not None:
            tier = f" {self.decision.host_tier}" if self.decision.host_tier is not None else ""
            record_of(model).uses.way = f"{self.decision.placement}{tier}"

    def is_of(self, model: nn.Module) -> bool:
        """Tell whether this is a placement of a model."""
        return self._model() is model

    def row(self, areas: Areas | None = None) -> PlacementRow:
        """Read the component's row of the report from the live model.

        Args:
            areas: where files lie in memory, where somebody has asked already: it is not free.
        """
        applied = self._backend.applied()
        model = self._model()
        masters = masters_of(model, areas) if model is not None else None
        return PlacementRow.of(
            self.facts,
            self.decision,
            applied=applied.word,
            how=applied.how,
            device=applied.device,
            host=applied.host,
            host_why=applied.host_why,
            host_now=host_bytes(model, masters) if model is not None and masters is not None else None,
            tiers=self._tiers(masters),
            moved_bytes=self._ledger.moved_bytes,
            layer_runs=self._ledger.layer_runs,
            measured=record_of(model).uses.measured(self._ledger) if model is not None else None,
        )

    def _tiers(self, masters: HostBytes | None) -> dict[str, int]:
        model = self._model()
        if model is None:
            return {}
        return {**bytes_by_place(model, masters), "slot": self._ledger.slot_bytes}


@dataclass(frozen=True)
class Placements:
    """All components placed so far in a workflow, in order; loaders chain by adding to it.

    Attributes:
        placed: the components.
        policies: the policies that they were placed by.
        notes: what the machine could not do of what was asked for the workflow as a whole.
        standing: what they were decided by, one for each policy.
    """

    placed: tuple[Placed, ...] = ()
    policies: tuple[Policy, ...] = ()
    notes: tuple[str, ...] = ()
    standing: tuple[Standing, ...] = ()

    def of(self, model: nn.Module) -> Placed | None:
        """Return the placement of a model."""
        return next((placed for placed in self.placed if placed.is_of(model)), None)

    def without(self, models: Iterable[nn.Module]) -> Placements:
        """Return the same without the placements of some models: a later loader places them anew."""
        again = list(models)
        kept = (placed for placed in self.placed if not any(map(placed.is_of, again)))
        return replace(self, placed=tuple(kept))

    @property
    def names(self) -> frozenset[str]:
        """The component names in use."""
        return frozenset(p.facts.name for p in self.placed)

    @property
    def decided(self) -> tuple[tuple[ComponentFacts, Decision], ...]:
        """The components, and what was decided for them."""
        return tuple((p.facts, p.decision) for p in self.placed)

    def report(self) -> Report:
        """Read the report of all components from the live models."""
        machine, areas, run = hardware.machine_facts(), Areas(), current_run()
        rows = tuple(p.row(areas) for p in self.placed)
        learn(run)
        card = self._card(run.peak) if run.peak is not None else None
        unused = [argument for policy in self.policies for argument in policy.unused(self.names)]
        return Report(
            machine=hardware.machine_line(machine),
            rows=rows,
            peaks=hardware.peaks(),
            began=run.began,
            card=card,
            suggestions=suggestions_of(self, rows, machine, card, run),
            notes=(*dict.fromkeys(self.notes), *self._room_notes(), *unused_notes(unused)),
        )

    def _room_notes(self) -> dict[str, None]:
        """Say for whom room is made."""
        rooms = (p.room for p in self.placed if p.room is not None)
        return dict.fromkeys(room.note for room in rooms if room.note)

    def _card(self, peak: Peak) -> CardPeak:
        """Name the models that were on a device."""
        names = {id(model): p.facts.name for p in self.placed if (model := p.model) is not None}
        models: dict[str, int] = {}
        for one, kind, size in peak.models:
            name = names.get(id(one()), kind)
            models[name] = models.get(name, 0) + size
        during = names.get(id(peak.during()), "") if peak.during is not None else ""
        name = hardware.name_of(torch.device(peak.device))
        return CardPeak(peak.device, peak.total, peak.used, name, peak.other, models, during)
