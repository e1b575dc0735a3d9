"""The dynamic backend: what a decision means for a patcher that ComfyUI pages in by itself.

The patcher stays ComfyUI's, class and methods: an attachment and callbacks under one key, no override. There is no
injection either, because ComfyUI injects although a load has failed. Weights are ComfyUI's to move; its line
(`dynamic_order`) and its bar (`dynamic_pages`) are set when it loads a model, and token tables are looked up on the
host. There is no look-ahead of ours: on the simulated card ComfyUI keeps the link busy all the time, and casting block
by block ahead of use gains nothing (`bench/look_ahead.py`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from comfy.patcher_extension import CallbacksMP

from ..engine import Stack, parameter_bytes, tensor_bytes
from ..log import debug
from ..policy import Decision, Placement, format_bytes
from . import debug_lines, load_lines
from .applied import GONE, Applied, ran_elsewhere, word_of
from .attachment import KEY, strip
from .backends import stand
from .dynamic_order import PageWish, Place
from .dynamic_pages import PAGE, allowed_bytes, needed_pages, range_of, resident_bytes, stray_pages
from .embedding import HostEmbeddings
from .handles import Handle, is_dynamic
from .loads import note_paged_load
from .watching import Watch


class Attached:
    """What one dynamic patcher carries: its place in line, and the stand-ins for its token tables."""

    def __init__(
        self,
        component: str,
        place: Place,
        embeddings: HostEmbeddings,
        before: Callable[[], None],
        watch: Watch,
    ) -> None:
        self.place = place
        self._component = component
        self._before = before
        self._embeddings = embeddings
        self._watch = watch
        self._line = load_lines.LoadLine(component)

    def put_on(self, patcher: Any, on_clone: Callable[[Any, Any], None]) -> None:
        """Put the contact points on a patcher, in place of those that are there."""
        strip(patcher)
        patcher.set_attachments(KEY, self)
        patcher.add_callback_with_key(CallbacksMP.ON_LOAD, KEY, self.on_load)
        patcher.add_callback_with_key(CallbacksMP.ON_CLONE, KEY, on_clone)
        patcher.add_callback_with_key(CallbacksMP.ON_DETACH, KEY, self.on_detach)

    def on_load(self, patcher: Any, *_: Any) -> None:
        """ComfyUI is about to use the patcher: its weights have addresses and patches, and none has moved."""
        self._before()
        self.place.look_for_pages()
        self._embeddings.on_host = _streams(self.place.wish) or _tables_leave(self.place)
        before, self.place.tables = self.place.tables, self._embeddings.tables()
        if len(self.place.tables) > len(before) and _tables_leave(self.place):
            self.place.drop_tables()  # once; others need that room at every use
        self.place.loaded()
        note_paged_load(patcher.model)
        self.place.watch()
        self._watch.install()
        self._embeddings.install()
        debug(lambda: debug_lines.paged_load(self._component, self.place))
        if self.place.wish.placement is not Placement.AUTO:
            self._line.tell(load_lines.paged(self.place))

    def on_detach(self, patcher: Any, unpatch_all: bool) -> None:
        """Leave the model as it was: ComfyUI lets go, loads a sibling, or has failed to load this one."""
        self.place.stop_watching()
        self._watch.remove()
        self._embeddings.uninstall()
        self.place.left()
        if unpatch_all:  # else it loads the same model again
            debug(lambda: debug_lines.paged_unload(self._component, self.place.device))
            self._line.left()


class Paged:
    """ComfyUI pages the component in; its place in line, its budget and its tables follow the decision."""

    def __init__(self, handle: Handle, wish: PageWish) -> None:
        self._component = handle.component
        self._wish = wish
        self._model = weakref.ref(handle.patcher.model)
        self._device = handle.patcher.load_device
        self._places: weakref.WeakSet[Place] = weakref.WeakSet()
        self.decide_again: Callable[[], None] = stand

    def attach(self, patcher: Any, stacks: Sequence[Stack]) -> None:
        """Give a patcher of this model a place of its own; clones get one when they are made."""
        model = self._model()
        if model is None or patcher.model is not model or not is_dynamic(patcher):
            strip(patcher)  # a copy of the model, for another device or without dynamic VRAM: ComfyUI's
            return
        place = Place(self._wish, model, self._device, stacks)
        embeddings = HostEmbeddings(model, self._device, on_host=_streams(self._wish))
        watch = Watch(model, self._device)
        Attached(self._component, place, embeddings, lambda: self.decide_again(), watch).put_on(
            patcher, lambda old, new: self.attach(new, stacks)
        )
        self._places.add(place)

    def take(self, decision: Decision) -> bool:
        """Follow another decision from the next load on: ComfyUI moves the pages, so nothing stands against it.

        To compute on the CPU takes another patcher, and the node to run again.
        """
        if decision.placement is Placement.CPU:
            return False
        self._wish = replace(self._wish, placement=decision.placement, flexible=decision.flexible)
        for place in self._places:
            place.wish = self._wish
        return True

    def applied(self) -> Applied:
        """Read from the live range how much of the component is on the device, and what holds for its pages."""
        model = self._model()
        if model is None:
            return GONE
        placement, device = self._wish.placement, str(self._device)
        place = next((place for place in self._places if place.in_force), None)
        if place is None or place.pages is None:
            pages = range_of(model, self._device)
            held = int(pages.loaded_size()) if pages is not None else 0
            state = f"not loaded now ({format_bytes(held)} of its pages are on {device})"
            how = f"{state}; when it is, {self._rule(self._wish.loops)}"
            return Applied(word_of(placement, held, max(PAGE, parameter_bytes(model))), how, device)
        needed = needed_pages(model, place.pages, place.tables)
        there, whole = resident_bytes(place.pages, needed), len(needed) * PAGE
        held = int(place.pages.loaded_size()) if there is None else there
        always = sum(tensor_bytes(p) for p in model.parameters() if p.device == self._device)
        says = "; ".join(self._says(place, needed, held if there is not None or not place.tables else None))
        return Applied(
            word_of(placement, held + always, whole + always), says, str(place.elsewhere or device)
        )

    def _says(self, place: Place, needed: Sequence[int], there: int | None) -> Iterator[str]:
        """Say what holds for the pages of a component that is loaded; `there` are bytes of those that it needs."""
        yield self._where(there, len(needed) * PAGE, place)
        yield self._rule(place.loops, place.lacking, place.takes_room)
        if self._wish.budget is not None and "set_watermark" not in place.lacking:
            yield _limit(place, needed)
        if place.tables:
            size = format_bytes(sum(parameter_bytes(table) for table in place.tables))
            why = ", because pages were missing in its last uses" if not _streams(self._wish) else ""
            yield f"its token table ({size}) is looked up in memory{why}"
        stray = stray_pages(place.pages, needed)
        if stray:
            yield f"{format_bytes(len(stray) * PAGE)} of pages that it does not need now are there, too"
        if place.elsewhere is not None:
            yield ran_elsewhere(place.elsewhere)
        if place.lacking:
            yield f"this comfy-aimdo has no {' and no '.join(place.lacking)}, so the rest is ComfyUI's"

    def _where(self, there: int | None, whole: int, place: Place) -> str:
        """Say how much of a component is on the device."""
        where = f"of its pages are on {self._device} now"
        if there == whole:
            return f"all {format_bytes(whole)} {where}"
        if there is not None:
            rest = "ComfyUI copies the rest when it runs"
            return f"{format_bytes(there)} of {format_bytes(whole)} {where}, and {rest}"
        held = format_bytes(int(place.pages.loaded_size()))  # type: ignore[union-attr]
        return f"{held} {where}; this comfy-aimdo does not say which (get_residency)"

    def _rule(self, loops: bool, lacking: Sequence[str] = (), takes_room: bool = False) -> str:
        """Say whose pages go when others need the room."""
        placement = self._wish.placement
        if placement is Placement.AUTO or "deprioritize" in lacking or "prioritize" in lacking:
            return "ComfyUI's dynamic VRAM decides whose pages go"
        if placement is Placement.OFFLOAD or (placement is Placement.LAYERWISE and loops):
            return "it takes the room it needs while it runs, and its pages go first afterwards"
        if placement is Placement.RESIDENT and self._wish.explicit:
            return "its pages go last among what is placed here"
        if takes_room:
            return "several uses in a row: it takes the room it needs for them, and its pages go first afterwards"
        if loops:
            return "it takes the room it needs while it runs"
        return "its pages use what is free, and go first"


def _streams(wish: PageWish) -> bool:
    """Tell whether token tables are looked up on the host."""
    return wish.placement is Placement.LAYERWISE or wish.budget is not None


def _tables_leave(place: Place) -> bool:
    """Tell whether tables are looked up on the host because what was to be whole has not had the room for it."""
    return place.wish.placement is Placement.RESIDENT and place.is_short


def _limit(place: Place, needed: Sequence[int]) -> str:
    """Say how much of a component's pages its budget allows on the device now."""
    if place.bar_failed:
        return "nothing limits its pages, because set_watermark of comfy-aimdo failed"
    allowed = allowed_bytes(place.pages, needed)
    if allowed is None:
        return "its budget was set, and this comfy-aimdo does not say how it stands now (get_watermark)"
    return f"at most {format_bytes(allowed)} of pages may be there now"
