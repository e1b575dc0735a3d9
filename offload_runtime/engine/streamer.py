"""The streamer: for the duration of a layer's `forward`, its weights are those in a slot.

Only entries of `module._parameters` are exchanged, and afterwards the very same host Parameters are back,
whatever happened inside: `try/finally` around `forward`, because torch's `always_call` hooks do not run for a
`BaseException`, which is what ComfyUI's interrupt is. Assigning `.data` or calling `module.to()` would break
quantised and GGUF tensors, and anybody who keeps a reference to a Parameter.

Weights are read through the module when they are copied, so a LoRA or a replaced Parameter is always seen.
While a layer computes, those that ran after it last time are copied into what is free of the slots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from .areas import Areas
from .lane import Event, Lane, where_else
from .ledger import Ledger
from .schedule import Fetch, Region, largest_neighbours
from .slots import Slots, layout_of, packed_bytes, why_unmovable
from .stacks import Layer, Stack, is_compiled, stack_layers, why_left
from .tiers import HostTier
from .trace import Trace
from .units import Units, enough_room
from .wrapper import unwrap, wrap, wrapped_by, wrapper_of


class _Exchange(NamedTuple):
    """One entry of a module's `_parameters` that is exchanged."""

    parameters: dict[str, nn.Parameter | None]
    name: str
    master: nn.Parameter


@dataclass(slots=True)
class _Occupant:
    """A unit in the slots, with the events that order its use.

    Attributes:
        swaps: each entry that is exchanged, its weight, and the same weight in the slots.
        region: where it lies.
        arrived: after this event it may be read.
        released: after this event it may be overwritten.
    """

    swaps: list[tuple[dict[str, nn.Parameter | None], str, nn.Parameter, nn.Parameter]]
    region: Region
    arrived: Event
    released: Event = None

    def is_current(self) -> bool:
        """Tell whether its weights are those that were copied: a LoRA or a refit may have replaced some."""
        return all(parameters.get(name) is master for parameters, name, master, _ in self.swaps)


class Streamer:
    """Runs the layers of some stacks out of slots.

    Life cycle: `install` wraps the layers and begins a use, `allocate` takes the slots' memory, `free` gives it
    back and `uninstall` unwraps. Installed without slots, the first layer call allocates them.

    Args:
        stacks: the layers.
        lane: the way to the compute device.
        tier: where the masters live.
        ledger: counts what is done.
        budget: bytes that the slots may take; one layer, or one operation and the rest of a split layer, is always
            let in. The layers are split where two whole ones take more than that, or more than would be of use.
        trace: the order of the last use, where it is known already.
    """

    def __init__(
        self,
        stacks: Sequence[Stack],
        lane: Lane,
        tier: HostTier,
        ledger: Ledger,
        budget: int | None = None,
        trace: Trace | None = None,
    ) -> None:
        self._layers = tuple(layer for layer in stack_layers(stacks) if not is_compiled(layer))
        self._prefixes = tuple(f"{layer.name}." for layer in self._layers)
        self._lane = lane
        self._tier = tier
        self._ledger = ledger
        self._budget = budget
        room = self._room_to_split_for()
        if room is not None:
            self._budget = room
        # Where the weights are looked up when a unit runs: walking its modules every time would cost more.
        self._units = Units(self._layers, room)
        self._trace = trace or Trace()
        self.on_elsewhere: Callable[[torch.device], None] = lambda device: None
        self._installed = self._volatile = False
        self._slots: Slots | None = None
        self._areas = Areas([], 0)
        self._running: list[int] = []
        self._left: set[int] = set()  # units of layers that are ComfyUI's, whole
        self._idle: set[int] = set()  # units that had nothing to copy when weights were last moved
        self._held: dict[int, _Occupant] = {}
        self._leaving: list[tuple[Region, Event]] = []  # memory that was given up, and when it is free

    @property
    def slot_bytes(self) -> int:
        """The device memory that the slots take now."""
        return self._slots.capacity if self._slots is not None else 0

    @property
    def footprint(self) -> int:
        """The most that the slots take while the component is loaded."""
        return self._plan([packed_bytes(_streamable(unit.parameters())) for unit in self._units.all]).capacity

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers that this streamer runs."""
        return tuple(layer for index, layer in enumerate(self._layers) if index not in self._left)

    @property
    def is_installed(self) -> bool:
        """Whether the layers run through this streamer, and through no other one that was installed later."""
        wrappers = (wrapper_of(unit.module) for unit in self._units.all)
        return self._installed and all(w is None or w.runner() is self for w in wrappers)

    def install(self, *, volatile: bool = False) -> None:
        """Wrap every layer's `forward`, in place of another streamer's wrapper if there is one.

        Args:
            volatile: the weights may be written in place between two runs of this use, so that nothing may be
                copied before it is needed, nor be kept.
        """
        self._installed, self._volatile = True, volatile
        self._find_left()
        self._trace.begin_use(self._units.order)
        self._forget_slots()
        self._wrap()

    def adjust(self) -> None:
        """Hear that weights have been moved to the device or back: wrap what is to be copied now, and only that."""
        if self.is_installed:
            self._find_left()
            self._wrap()

    def uninstall(self) -> None:
        """Unwrap what this streamer wrapped, and nothing else."""
        self._installed = False
        self._forget_slots()
        for unit in self._units.all:
            if wrapped_by(unit.module, self):
                unwrap(unit.module)

    def streamed_layers(self) -> int:
        """Return how many layers have weights that are copied when they run."""
        return sum(any(map(self._is_to_copy, layer.module.parameters())) for layer in self.layers)

    def streams(self, name: str) -> bool:
        """Tell whether the parameter of this name belongs to one of the layers."""
        return name.startswith(self._prefixes)

    def streamed_bytes(self) -> int:
        """Return what one pass copies now; resident weights are not copied."""
        return sum(self._sizes())

    def pack(self) -> None:
        """Bring the masters of every unit into the form that copies fastest."""
        packed: set[int] = set()
        for index in range(len(self._units.all)):
            masters = _masters(self._exchanges(index))
            # A weight that an earlier one uses, too, is in that one's block, and can only be in one.
            if packed.isdisjoint(map(id, masters)):
                self._tier.pack(masters)
            packed.update(map(id, masters))

    def allocate(self) -> None:
        """Take the slots' memory now, so that nobody else plans with it: as much as the streamed layers need."""
        areas = self._plan(self._sizes())
        if self._slots is None or areas.capacity > self.slot_bytes:
            self.free()
            self._slots = Slots(areas.capacity, self._lane.device)
            self._ledger.record_slots(self.slot_bytes)
            # The memory may be what compute has just given back, and is still working on.
            self._leaving = [(Region(0, self.slot_bytes), self._lane.mark())]
            self._begin(areas)

    def free(self) -> int:
        """Give the slots' memory back and return how many bytes that were."""
        freed = self.slot_bytes
        self._give_up_all()
        if freed:
            self._lane.settle()
        self._slots, self._areas = None, Areas([], 0)
        self._leaving.clear()
        self._ledger.record_slots(-freed)
        return freed

    def run(self, index: int, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call the `forward` of one of the units with its weights in a slot."""
        position = self._trace.record(index)
        if index < self._units.layers:
            self._ledger.layer_runs += 1
            self._ledger.elsewhere = elsewhere = where_else(self._lane.device, args, kwargs)
            if elsewhere is not None:  # whoever called it computes there: with the masters, as without us
                self.on_elsewhere(elsewhere)
                return forward(*args, **kwargs)
        self._running.append(index)
        try:
            return self._run(index, position, forward, args, kwargs)
        except BaseException:
            self._trace.break_off()
            raise
        finally:
            self._running.pop()

    def _run(self, index: int, position: int, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        occupant = self._occupant(index, position)
        if occupant is None:
            self._look_ahead(position)
            return forward(*args, **kwargs)
        self._wait(index, occupant)
        swaps = occupant.swaps
        try:
            for parameters, name, _, view in swaps:
                parameters[name] = view
            self._look_ahead(position)
            return forward(*args, **kwargs)
        finally:
            for parameters, name, master, _ in swaps:
                parameters[name] = master
            occupant.released = self._lane.mark()

    def _occupant(self, index: int, position: int) -> _Occupant | None:
        """Return a unit in the slots, on its way there at least, or None when it has nothing to copy."""
        if index in self._idle:
            return None
        occupant = self._held.get(index)
        if occupant is not None and not self._volatile and occupant.is_current():
            return occupant
        exchanges = self._exchanges(index)
        return self._bring(index, position, exchanges) if exchanges else None

    def _bring(self, index: int, position: int, exchanges: list[_Exchange]) -> _Occupant:
        """Start to copy a unit that was not expected."""
        size = packed_bytes(_masters(exchanges))
        self._give_up(index)
        if self._slots is None or self._areas.sizes[index] != size:
            # ComfyUI has moved weights of it since. New slots: what it runs in may still be in the old ones.
            self.free()
            self.allocate()
        fetch = self._areas.demand(index, position)
        for other in fetch.evicted:
            assert other not in self._running, "layers do not run in one another"
            self._give_up(other)
        return self._put(fetch, exchanges)

    def _wait(self, index: int, occupant: _Occupant) -> None:
        try:
            self._lane.wait(occupant.arrived)
        except BaseException:
            self._give_up(index)
            raise

    def _look_ahead(self, position: int) -> None:
        """Start to copy what is expected next into what is free."""
        if self._volatile or position < 0:
            return
        if not self._tier.overlaps:
            for following in self._trace.expected[position + 1 : position + 2]:
                self._tier.expect(_masters(self._exchanges(following)))
            return
        for fetch in self._areas.ahead(self._running, position):
            for other in fetch.evicted:  # in any case: the plan gives their memory to others from here on
                self._give_up(other)
            exchanges = self._exchanges(fetch.layer)
            if packed_bytes(_masters(exchanges)) == self._areas.sizes[fetch.layer]:
                self._put(fetch, exchanges)
            else:  # its weights have been moved since the plan was made; it is copied when it runs
                self._areas.drop(fetch.layer)

    def _put(self, fetch: Fetch, exchanges: list[_Exchange]) -> _Occupant:
        slots, region, masters = self._slots, fetch.region, _masters(exchanges)
        assert slots is not None
        after = tuple(event for left, event in self._leaving if left.overlaps(region))
        self._leaving = [
            (r, e) for r, e in self._leaving if not (region.start <= r.start and r.end <= region.end)
        ]
        views = slots.views(region.start, layout_of(masters))
        block = self._tier.packed(masters)

        def transfer() -> None:
            if block is not None:
                slots.region(region.start, block.numel()).copy_(block, non_blocking=True)
            else:
                for place, master in zip(views, masters, strict=True):
                    place.copy_(master, non_blocking=True)

        queue = self._lane.copy_in_background if self._tier.holds_the_host(block) else self._lane.copy
        arrived = queue(after, transfer)
        if self._volatile:
            self._lane.finish(arrived)
        self._tier.finish(masters)
        self._ledger.record_move(self._tier.name, sum(master.nbytes for master in masters))
        in_slot = {id(m): v for m, v in zip(masters, views, strict=True)}
        swaps = [(e.parameters, e.name, e.master, in_slot[id(e.master)]) for e in exchanges]
        occupant = self._held[fetch.layer] = _Occupant(swaps, region, arrived)
        return occupant

    def _give_up(self, index: int) -> None:
        """Let a unit's memory go, as soon as what reads and writes it is done."""
        occupant = self._held.pop(index, None)
        self._areas.drop(index)
        if occupant is not None:
            self._leaving += [(occupant.region, occupant.arrived), (occupant.region, occupant.released)]

    def _give_up_all(self) -> None:
        """Empty the slots. Between two uses anybody may write the masters: no copy reads them then."""
        for index, occupant in list(self._held.items()):
            self._give_up(index)
            self._lane.finish(occupant.arrived)

    def _forget_slots(self) -> None:
        """Empty the slots, and plan anew for what is to be copied now."""
        self._give_up_all()
        areas = self._plan(self._sizes())
        if areas.capacity > self.slot_bytes:
            self.free()  # they are too small now
        else:
            self._begin(areas)

    def _begin(self, areas: Areas) -> None:
        self._areas = areas
        areas.expect(self._trace.expected)

    def _plan(self, sizes: Sequence[int]) -> Areas:
        return Areas(sizes, self._units.layers, self._budget, ahead=self._tier.overlaps)

    def _sizes(self) -> list[int]:
        """Return what each unit takes in the slots now; resident weights take nothing."""
        return [packed_bytes(_masters(self._exchanges(index))) for index in range(len(self._units.all))]

    def _room_to_split_for(self) -> int | None:
        """Return the bytes for slots, when they are less than two whole layers take."""
        if not self._tier.overlaps:
            return None
        whole = largest_neighbours(
            [packed_bytes(_streamable(layer.module.parameters())) for layer in self._layers]
        )
        enough = enough_room(self._layers)
        room = enough if self._budget is None else min(enough, self._budget)
        return room if room < whole else None

    def _wrap(self) -> None:
        """Wrap the units that have weights to copy; every layer until a use has told how often it runs."""
        unknown = self._units.layers if self._trace.passes is None else 0
        self._idle = {index for index in range(len(self._units.all)) if not self._exchanges(index)}
        for index, unit in enumerate(self._units.all):
            if wrapper_of(unit.module) is not None:
                unwrap(unit.module)
            if index < unknown or index not in self._idle:
                wrap(unit.module, index, self)

    def _find_left(self) -> None:
        """Note which layers cannot be taken apart: of such a one, nothing is copied."""
        left = [layer for layer in self._layers if why_left(layer) is not None]
        modules = {id(module) for layer in left for module in (layer.module, *layer.parts)}
        self._left = {i for i, unit in enumerate(self._units.all) if id(unit.module) in modules}

    def _is_to_copy(self, parameter: nn.Parameter) -> bool:
        return self._tier.holds(parameter) and why_unmovable(parameter) is None

    def _exchanges(self, index: int) -> list[_Exchange]:
        if index in self._left:
            return []
        return [
            _Exchange(parameters, name, parameter)
            for parameters, name in self._units.all[index].entries
            if (parameter := parameters.get(name)) is not None and self._is_to_copy(parameter)
        ]


def _streamable(parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    """Return the weights that are streamed when they are on the host, wherever they are now."""
    return [p for p in parameters if p.device.type not in ("cpu", "meta") or why_unmovable(p) is None]


def _masters(exchanges: Sequence[_Exchange]) -> list[nn.Parameter]:
    return list({id(e.master): e.master for e in exchanges}.values())  # a tied weight is copied once
