"""Room for a workflow that ran out of memory: in its next plan, and in what ComfyUI is asked for.

Whoever computes says that there was no memory (`out_of_memory`), and so do the VAEs that ComfyUI
tries again in tiles. The plan leaves a margin then: encoders give way to it, and budgets shrink. What ran out also asks
ComfyUI for that much more, which takes weights of others off the device before it begins. The margin is kept from one
start to the next, and goes again when the runs leave room.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Mapping
from dataclasses import replace

from torch import nn

from ..log import information
from ..policy import MachineFacts, Plan, format_bytes
from ..policy.components import Mode
from ..policy.learnt import workflow_key
from ..policy.making_room import is_set
from ..policy.margin import Margin, after_failure
from . import runs
from .learning import keep_margin, margin_of, recall
from .record import all_records, record_of


class MakingRoom:
    """The room that is made for one workflow.

    Args:
        models: its components: name → model, those of earlier loaders included.
    """

    def __init__(self, models: Mapping[str, nn.Module]) -> None:
        keys = [recall(model) for model in models.values()]
        self.key = workflow_key(keys) if all(keys) else ""
        self._names = weakref.WeakKeyDictionary({model: name for name, model in models.items()})
        self._others = self._total = self._activations = 0
        self._not_ours: frozenset[str] = frozenset()
        for model in models.values() if self.key else ():
            record_of(model).workflows.add(self)

    def on(self, machine: MachineFacts) -> MachineFacts:
        """Return the facts of a machine with the margin that is to be left free of it."""
        self._others, self._total = machine.vram_others, machine.vram_total
        margin = self._margin
        if margin is None:
            return replace(machine, margin=0, ran_out="")
        return replace(machine, margin=margin.bytes, ran_out=margin.component)

    def decided(self, plan: Plan) -> None:
        """Hear what was decided: what somebody set asks ComfyUI for no more than it does by itself."""
        self._activations = plan.activations
        manual = plan.mode is Mode.MANUAL
        self._not_ours = frozenset(d.component for d in plan if manual or is_set(d))

    def extra(self, model: nn.Module) -> int:
        """Return what a model should ask ComfyUI for beyond ComfyUI's own estimate, in bytes."""
        margin, name = self._margin, self._names.get(model, "")
        return margin.bytes if margin and margin.component == name and name not in self._not_ours else 0

    @property
    def note(self) -> str:
        """What a person should know of it, or ""."""
        margin = self._margin
        if margin is None:
            return ""
        size = format_bytes(margin.bytes)
        return (
            f"Room of {size} is made for this workflow, because {margin.component} ran out of memory in an earlier "
            "run; what was set stays as it is."
        )

    @property
    def _margin(self) -> Margin | None:
        margin = margin_of(self.key)
        return margin if margin is not None and margin.counts(self._others) else None

    def ran_out(self, model: nn.Module, missing: int) -> None:
        """Hear that a model ran out of memory; a run counts once."""
        name, before, now = self._names.get(model, ""), margin_of(self.key), time.time()
        if not self._total or (before is not None and before.failed_at >= runs.current_run().began):
            return
        margin = after_failure(before, name, missing, self._total, self._others, now)
        keep_margin(self.key, margin)
        room = format_bytes(margin.bytes)
        information("%s ran out of memory, so the next plan of this workflow makes room: %s", name, room)

    def over(self, run: runs.Run) -> None:
        """Hear that a run is over in which one of the models computed."""
        margin = margin_of(self.key)
        if margin is None or not margin.bytes or margin.failed_at >= run.began:
            return
        for model, name in self._names.items():
            uses = record_of(model).uses
            if name == margin.component and uses.run is run and uses.peak and not uses.failed:
                spare = self._activations + margin.bytes - uses.need
                left = margin.relaxed(spare, self._total, time.time())
                if left != margin:
                    keep_margin(self.key, left)


def _over(run: runs.Run) -> None:
    used = (record for record in all_records() if record.uses.run is run)
    workflows = {workflow.key: workflow for record in used for workflow in record.workflows}
    for workflow in workflows.values():
        workflow.over(run)


runs.when_over.append(_over)
