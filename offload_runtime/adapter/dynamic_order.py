"""Whose pages go first under dynamic VRAM: one order over all placed components of a device.

ComfyUI puts a model at the front of the line whenever it loads it, so the last one loaded takes pages of all the
others. That is wrong for an encoder that runs once per prompt: it evicts a diffusion model, which has to come back
for the next step. So whenever a placed component is loaded, all of them take their places anew. Those that a person
wanted resident go to the front. The others go behind what is left to ComfyUI: what was found to fit, then what
streams, then what is offloaded. A component that runs its layers once takes such a place before it runs, uses what
is free and evicts nobody; one that loops, only afterwards, and so does one that is used several times in a row.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..engine import Stack
from ..engine.lane import where_else
from ..engine.stacks import stack_layers
from ..policy import Placement
from ..policy.rounds import PAGED
from .dynamic_pages import drop_stray_pages, lacks_pages, range_of, set_bar, watermark_for
from .record import all_records, record_of


@dataclass(frozen=True)
class PageWish:
    """What was decided for a component, as far as its pages are concerned.

    Attributes:
        placement: the placement; `auto` leaves its own pages to ComfyUI.
        explicit: whether a person asked for it.
        budget: bytes of device memory that somebody allowed it, or None.
        loops: whether its layers are taken to run more than once per use, until a use has shown it.
        flexible: whether it may take the room of others when it is used several times in a row.
    """

    placement: Placement
    explicit: bool
    budget: int | None
    loops: bool
    flexible: bool = False


_BEHIND = (Placement.RESIDENT, Placement.LAYERWISE, Placement.OFFLOAD)
"""Placements whose pages go before those of everybody else, the last one first; unless a person said resident."""

_SHORT = 2
"""Uses in a row at which pages were missing: from then on they are taken to be so every time."""

_turns = itertools.count()


class Place:
    """The place in line of one patcher's component."""

    def __init__(
        self, wish: PageWish, model: nn.Module, device: torch.device, stacks: Sequence[Stack]
    ) -> None:
        self.wish = wish
        self.device = device
        self.tables: list[nn.Module] = []
        self.turn = -1
        self.elsewhere: torch.device | None = None  # where its layers last ran, if it was not this device
        self._model = weakref.ref(model)
        self._trace = record_of(model).trace
        self._layers = {id(layer.module): i for i, layer in enumerate(stack_layers(stacks))}
        self._firsts = [stack.layers[0].module for stack in stacks]
        self._hooks: list[Any] = []
        self._rounds = record_of(model).rounds
        self._takes_room = False  # for several uses in a row
        self._short = 0  # uses in a row that began with pages missing, here or beside it
        self.is_last = False
        self.bar_failed = False

    @property
    def pages(self) -> Any | None:
        """The live range of the model, or None before its first load."""
        model = self._model()
        return range_of(model, self.device) if model is not None else None

    @property
    def in_force(self) -> bool:
        """Whether this patcher is the one of its model that is loaded."""
        model = self._model()
        return model is not None and record_of(model).place is self

    @property
    def loops(self) -> bool:
        """Whether its layers ran more than once in the last use; before the first one, what is usual."""
        passes = self._trace.passes
        return self.wish.loops if passes is None else passes > 1

    @property
    def kept(self) -> bool:
        """Whether a person wants it resident."""
        return self.wish.placement is Placement.RESIDENT and self.wish.explicit

    @property
    def takes_room(self) -> bool:
        """Whether it takes the room of others now, because it is used several times in a row."""
        return self._takes_room and self.in_force

    @property
    def runs_last_in_line(self) -> bool:
        """Whether it leaves the pages of others alone while it runs."""
        return self.wish.placement in (Placement.LAYERWISE, Placement.RESIDENT) and not (
            self.kept or self.loops or self.takes_room
        )

    @property
    def goes_first(self) -> bool:
        """Whether its pages go before those of everybody else, once another component runs."""
        amid = self.takes_room and self._rounds.goes_on
        return self.wish.placement in _BEHIND and not self.kept and not amid

    @property
    def is_short(self) -> bool:
        """Whether there is not enough room for all pages: then its token tables are better looked up on the host."""
        return self._short >= _SHORT

    @property
    def lacks_pages(self) -> bool:
        """Whether it has been used, and some of its pages have been taken since."""
        model, pages = self._model(), self.pages
        return self.turn >= 0 and model is not None and lacks_pages(model, pages, self.tables)

    @property
    def ends_rounds(self) -> bool:
        """Whether it needs the room that others have taken for several uses in a row: a sampler's model does."""
        return self.loops or self.wish.placement is Placement.AUTO

    @property
    def lacking(self) -> list[str]:
        """What the live range lacks of what this place needs: names of its methods."""
        names = ["deprioritize"] if self.wish.placement in (Placement.LAYERWISE, Placement.OFFLOAD) else []
        names += ["prioritize"] if self.kept else []
        names += ["set_watermark"] if self.wish.budget is not None else []
        pages = self.pages
        return [name for name in names if pages is not None and not hasattr(pages, name)]

    def loaded(self) -> None:
        """Take part from now on: ComfyUI has put the model at the front of the line."""
        model = self._model()
        if model is not None and self.pages is not None:
            record_of(model).place = self
            self.turn = next(_turns)
            self.is_last = False
            self._takes_room = self.wish.flexible and self._rounds.begin(PAGED)
            _line_up(self)

    def look_for_pages(self) -> None:
        """Note whether pages are missing as a use begins. Without the tables none may be, so that is not taken back."""
        if not self.is_short:
            missing = self.lacks_pages or any(p.lacks_pages for p in _taking_part(self.device))
            self._short = self._short + 1 if missing else 0

    def drop_tables(self) -> None:
        """Let pages go that are of no use since tables are looked up on the host."""
        model = self._model()
        if model is not None:
            drop_stray_pages(model, self.pages, self.tables)

    def left(self) -> None:
        """Take no part any more, unless another patcher of the model has the place already."""
        if self.in_force:
            record_of(self._model()).place = None  # type: ignore[arg-type]

    def round_ends(self) -> None:
        """Give the room back that was taken for several uses in a row, whether or not all of them came."""
        self._takes_room = False

    # Passes ---------------------------------------------------------------------------------------

    def watch(self) -> None:
        """Count passes from here on: a use that turns out to loop moves to the front for the rest of it."""
        self.stop_watching()
        self._trace.begin_use()
        reference = weakref.ref(self)  # the hooks live on modules that this place refers to

        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            place = reference()
            if place is not None:
                place.elsewhere = where_else(place.device, args, kwargs)
                place._begins_a_pass(module)

        self._hooks = [module.register_forward_pre_hook(hook, with_kwargs=True) for module in self._firsts]

    def stop_watching(self) -> None:
        """Take the hooks off."""
        while self._hooks:
            self._hooks.pop().remove()

    def _begins_a_pass(self, module: nn.Module) -> None:
        if not self.in_force:
            return  # two patchers of the model are loaded, and only one of them counts
        self._trace.record(self._layers[id(module)])
        if self.is_last and self.loops:
            self.move(front=True)
            _line_up(self)

    # The range ------------------------------------------------------------------------------------

    def hold_budget(self) -> None:
        """Let no more pages be resident than the budget allows; being moved to the front has lifted the bar."""
        model, pages = self._model(), self.pages
        if self.wish.budget is None or model is None or not hasattr(pages, "set_watermark"):
            return
        drop_stray_pages(model, pages, self.tables)
        address = watermark_for(model, pages, self.wish.budget, self.tables)
        self.bar_failed = address is not None and not set_bar(pages, address)

    def move(self, *, front: bool) -> None:
        """Move to the front or the end of the line, where the native layer can."""
        method = getattr(self.pages, "prioritize" if front else "deprioritize", None)
        if method is not None:
            method()
        self.is_last = not front


def _line_up(current: Place) -> None:
    """Give every component of a device its place, now that one of them runs.

    Of two of a kind, the one that ran last goes first: they run in the same order for the next prompt, and what
    comes first then should find its pages.
    """
    places = sorted(_taking_part(current.device), key=lambda place: place.turn)
    if current.ends_rounds:
        for place in places:
            place.round_ends()
    behind = [p for p in places if p.goes_first]
    if not current.runs_last_in_line:
        behind = [p for p in behind if p is not current]
    kept = [p for p in places if p.kept]
    for place in sorted(behind, key=lambda p: _BEHIND.index(p.wish.placement)):
        place.move(front=False)
    for place in kept:
        place.move(front=True)
    for place in {*kept, current}:
        place.hold_budget()


def _taking_part(device: torch.device) -> list[Place]:
    places = [place for record in all_records() if (place := record.place) is not None]
    return [place for place in places if place.device == device and place.pages is not None]
