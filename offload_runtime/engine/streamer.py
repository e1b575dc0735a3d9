"""The streamer: for the duration of a layer's `forward`, its weights are those in a slot.

Only entries of `module._parameters` are exchanged, and afterwards the very same host Parameters are back,
whatever happened inside: `try/finally` around `forward`, because torch's `always_call` hooks do not run for a
`BaseException`, which is what ComfyUI's interrupt is. Assigning `.data` or calling `module.to()` would break
quantised and GGUF tensors, and anybody who keeps a reference to a Parameter.

Weights are read through the module when they are copied, so a LoRA or a replaced Parameter is always seen.
While a layer computes, those that ran after it last time are copied into what is free of the slots.

One thread at a time runs units of a streamer, one unit inside another if need be. Slots may be given back by any
thread at any time: what runs keeps its memory until it is done.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from operator import setitem
from typing import Any

import torch

from .areas import Areas
from .carrier import Carrier
from .lane import Event, Lane, where_else
from .ledger import Ledger
from .masters import Masters
from .occupant import Exchange, Occupant, count_writes, masters_of
from .prediction import Prediction
from .schedule import Fetch, Region
from .scratch import scratch
from .slots import Slots, packed_bytes
from .spans import Track
from .stacks import Layer, Stack, is_compiled, stack_layers
from .tiers import FileTier, Tier
from .trace import Trace
from .units import Units, room_to_split_for, streamable
from .wrapper import unwrap, wrap, wrapped_by, wrapper_of

_planning = threading.RLock()
"""Held while slots are planned and filled, by all streamers: memory may be asked for on any thread. Never while a
layer computes."""


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
        look_ahead: whether what runs next may be copied while something computes. If not, each layer is copied when
            it runs, behind all that was computed before it.
    """

    def __init__(
        self,
        stacks: Sequence[Stack],
        lane: Lane,
        tier: Tier,
        ledger: Ledger,
        budget: int | None = None,
        trace: Trace | None = None,
        *,
        look_ahead: bool = True,
    ) -> None:
        self._layers = tuple(layer for layer in stack_layers(stacks) if not is_compiled(layer))
        self._prefixes = tuple(f"{layer.name}." for layer in self._layers)
        self._lane = lane
        self._tier = tier
        self._ledger = ledger
        self._budget = budget
        self._ahead = look_ahead and tier.overlaps
        self._carrier = Carrier(lane, tier, ledger, ahead=self._ahead)
        room = room_to_split_for(self._layers, budget, ahead=self._ahead) if tier.overlaps else None
        if room is not None:
            self._budget = room
        # Where the weights are looked up when a unit runs: walking its modules every time would cost more.
        self._units = Units(self._layers, room)
        self.on_elsewhere: Callable[[torch.device], None] = lambda device: None
        self._trace = trace if trace is not None else Trace()
        self._prediction = Prediction(self._units.groups)
        self._turn = threading.RLock()
        self._installed = False
        self._slots: Slots | None = None
        self._areas = Areas([], 0)
        self._running: dict[int, Occupant] = {}  # units that run out of slots, the outermost first
        self._masters = Masters(self._layers, self._units, tier, self._running)
        self._innermost = -1  # the unit that runs inside all others
        self._torn = False  # whether an interrupt has left the plan half done
        self._idle: set[int] = set()  # units that had nothing to copy when weights were last moved
        self._held: dict[int, Occupant] = {}
        self._leaving: list[tuple[Region, Event]] = []  # memory that was given up, and when it is free

    @property
    def slot_bytes(self) -> int:
        """The device memory that the slots take now."""
        return self._slots.capacity if self._slots is not None else 0

    @property
    def footprint(self) -> int:
        """The most that the slots take while the component is loaded."""
        sizes = [packed_bytes(streamable(unit.parameters())) for unit in self._units.all]
        return Areas(sizes, self._units.layers, self._budget, ahead=self._ahead).capacity

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers that this streamer runs."""
        return self._masters.layers

    @property
    def reads_file(self) -> bool:
        """Whether the masters rest in a model file."""
        return self._tier.name == FileTier.name

    @property
    def is_installed(self) -> bool:
        """Whether the layers run through this streamer, and through no other one that was installed later."""
        wrappers = (wrapper_of(unit.module) for unit in self._units.all)
        return self._installed and all(w is None or w.runner() is self for w in wrappers)

    def install(self) -> None:
        """Wrap every layer's `forward`, in place of another streamer's wrapper if there is one."""
        with _planning:
            self._installed = True
            self._tier.begin_use([p for unit in self._units.all for p in unit.parameters()])
            self._masters.find_left()
            self._trace.begin_use()
            self._prediction = Prediction(self._units.groups, self._units.last_use(self._trace))
            self._forget_slots()
            count_writes(self._masters.parts())
            self._wrap()

    def adjust(self) -> None:
        """Hear that weights have been moved to the device or back: wrap what is to be copied now, and only that."""
        with _planning:
            if self.is_installed:
                self._masters.find_left()
                self._wrap()

    def uninstall(self) -> None:
        """Unwrap what this streamer wrapped, and nothing else."""
        with _planning:
            self._installed = False
            self._forget_slots()
            for unit in self._units.all:
                if wrapped_by(unit.module, self):
                    unwrap(unit.module)

    def streamed_layers(self) -> int:
        """Return how many layers have weights that are copied when they run."""
        return len(self.layers) - len(self.staying())

    def staying(self) -> list[Layer]:
        """Return the layers of which nothing is copied when they run."""
        return [
            layer
            for layer in self.layers
            if not any(map(self._masters.are_to_copy, layer.module.parameters()))
        ]

    def streams(self, name: str) -> bool:
        """Tell whether the parameter of this name belongs to one of the layers."""
        return name.startswith(self._prefixes)

    def streamed_bytes(self) -> int:
        """Return what one pass copies now; resident weights are not copied."""
        return sum(self._masters.sizes())

    def pack(self, on_step: Callable[[int], object] = lambda done: None) -> None:
        """Bring the masters of every unit into the form that copies fastest.

        Args:
            on_step: takes the bytes of a unit that has been, for progress.
        """
        self._lane.settle()  # the masters move, and memory that a copy reads must not be unpinned
        packed: set[int] = set()
        for masters in self._masters.of_each():
            # A weight that an earlier one uses, too, is in that one's block, and can only be in one.
            if masters and packed.isdisjoint(map(id, masters)):
                self._tier.pack(masters)
                on_step(packed_bytes(masters))
            packed.update(map(id, masters))

    def allocate(self) -> None:
        """Take the slots' memory now, so that nobody else plans with it: as much as the streamed layers need."""
        with _planning:
            areas = self._plan(self._masters.sizes())
            if self._slots is None or areas.capacity > self.slot_bytes:
                self.free()
                slots = Slots(areas.capacity, self._lane.device)
                areas.expect(self._prediction.expected)
                # The memory may be what compute has just given back, and is still working on.
                leaving: list[tuple[Region, Event]] = [(Region(0, slots.capacity), self._lane.mark())]
                self._slots, self._areas, self._leaving = slots, areas, leaving
                self._ledger.record_slots(self.slot_bytes)

    def free(self) -> int:
        """Give the slots' memory back and return how many bytes that were; a unit that runs keeps it until it ends."""
        with _planning:
            slots, freed = self._slots, self.slot_bytes
            self._slots, self._areas, self._held, self._leaving = None, Areas([], 0), {}, []
            self._torn = False
            self._ledger.record_slots(-freed)
            if slots is not None:
                self._lane.settle()
            return freed

    def run(self, index: int, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call the `forward` of one of the units with its weights in a slot."""
        with self._turn, scratch:
            if not self._installed:  # another thread has just unwrapped it
                return forward(*args, **kwargs)
            outer, caller = len(self._running), self._innermost
            try:
                return self._run(index, forward, args, kwargs)
            except BaseException:
                self._trace.break_off()
                if self._torn:
                    self.free()
                raise
            finally:
                while len(self._running) > outer:  # an interrupt has kept it from leaving
                    self._leave(next(reversed(self._running)))
                self._innermost = caller
                if caller in self._running:
                    self._come_back(caller)

    def _run(self, index: int, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        nested = index in self._running  # it calls itself
        self._innermost = index
        elsewhere = where_else(self._lane.device, args, kwargs)
        begin = self._lane.stamp() if self._lane.in_order else None
        with _planning:
            occupant = self._enter(index, elsewhere)
        if elsewhere is not None:  # whoever called it computes there: with the masters, as without us
            self.on_elsewhere(elsewhere)
        if occupant is None or nested:
            return forward(*args, **kwargs)
        if begin is None and not self._lane.has_come(occupant.arrived):
            begin = self._lane.stamp()
            self._wait(index, occupant)
        occupant.started = self._lane.stamp()
        if begin is not None:  # else nothing was waited for
            self._ledger.waiting.add(begin, occupant.started)
        if index < self._units.layers:
            self._ledger.on_layer(index + 1, self._units.layers)
        any(map(setitem, *occupant.exchange))
        try:
            return forward(*args, **kwargs)
        finally:
            self._leave(index)

    def _enter(self, index: int, elsewhere: torch.device | None = None) -> Occupant | None:
        """Bring a unit that runs now, and start to copy what follows. Returns None when it has nothing to copy."""
        self._torn = True
        self._trace.record(self._units.names[index])
        self._ledger.elsewhere = elsewhere
        if index < self._units.layers:
            self._ledger.layer_runs += 1
        if elsewhere is not None:
            self._torn = False
            return None
        position = self._prediction.follow(index)
        if self._slots is not None:
            self._areas.follow(self._prediction.expected)
        occupant = self._running.get(index)
        if occupant is not None:
            self._come_back(index)
        elif index not in self._idle:
            occupant = self._occupant(index, position)
            if occupant is not None:
                self._running[index] = occupant
        self._look_ahead(position)
        self._torn = False
        return occupant

    def _leave(self, index: int) -> None:
        """Put a unit's own weights back. Nothing is lost when an interrupt comes in between and it is done again."""
        occupant = self._running[index]
        any(map(setitem, *occupant.restore))
        occupant.released = self._lane.mark()
        del self._running[index]
        started, occupant.started = occupant.started, None
        if started is not None:
            end = occupant.released or self._lane.stamp()
            self._ledger.note(Track.COMPUTE, self._lane.name, self._units.names[index], started, end)

    def _come_back(self, index: int) -> None:
        """Copy a unit that runs again, to where it was, if one that it called has taken the memory."""
        occupant = self._running[index]
        if not occupant.displaced:
            return
        with _planning:
            self._torn = True
            after = [self._lane.mark()]
            if occupant.slots is self._slots:
                self._give_up(index)
                self._evict(self._areas.claim(index, occupant.region))
                self._held[index] = occupant
                after += [event for left, event in self._leaving if left.overlaps(occupant.region)]
            self._carrier.bring_again(occupant, self._units.names[index], tuple(after))
            self._torn = occupant.displaced = False

    def _occupant(self, index: int, position: int) -> Occupant | None:
        """Return a unit in the slots, on its way there at least, or None when it has nothing to copy."""
        occupant = self._held.get(index)
        if occupant is not None and occupant.is_current():
            return occupant
        exchanges = self._masters.of(index)
        return self._bring(index, position, exchanges) if exchanges else None

    def _bring(self, index: int, position: int, exchanges: Sequence[Exchange]) -> Occupant:
        """Start to copy a unit that was not expected."""
        size = packed_bytes(masters_of(exchanges))
        self._give_up(index)
        if self._slots is None or self._areas.sizes[index] != size:
            # ComfyUI has moved weights of it since. New slots: what it runs in may still be in the old ones.
            self.free()
            self.allocate()
        fetch = self._areas.demand(index, position, tuple(self._running))
        self._evict(fetch.evicted)
        return self._put(fetch, exchanges)

    def _wait(self, index: int, occupant: Occupant) -> None:
        try:
            self._lane.wait(occupant.arrived)
        except BaseException:
            with _planning:
                self._give_up(index)
            raise

    def _look_ahead(self, position: int) -> None:
        """Start to copy what is expected next into what is free."""
        if position < 0:
            return
        if not self._ahead:
            for following in self._prediction.expected[position + 1 : position + 2]:
                self._tier.expect(masters_of(self._masters.of(following)))
            return
        for fetch in self._areas.ahead(self._running, position):
            self._evict(fetch.evicted)  # in any case: the plan gives their memory to others from here on
            exchanges = self._masters.of(fetch.layer)
            if packed_bytes(masters_of(exchanges)) == self._areas.sizes[fetch.layer]:
                self._put(fetch, exchanges)
            else:  # its weights have been moved since the plan was made; it is copied when it runs
                self._areas.drop(fetch.layer)

    def _put(self, fetch: Fetch, exchanges: Sequence[Exchange]) -> Occupant:
        slots, region = self._slots, fetch.region
        assert slots is not None
        after = tuple(event for left, event in self._leaving if left.overlaps(region))
        if not self._ahead:
            after = (*after, self._lane.mark())
        self._leaving = [
            (r, e) for r, e in self._leaving if not (region.start <= r.start and r.end <= region.end)
        ]
        occupant = self._carrier.bring(slots, region, exchanges, self._units.names[fetch.layer], after)
        self._held[fetch.layer] = occupant
        return occupant

    def _evict(self, units: Iterable[int]) -> None:
        """Let units give way to another; those that run come back before they go on."""
        for index in units:
            running = self._running.get(index)
            if running is not None:
                running.released, running.displaced = self._lane.mark(), True
            self._give_up(index)

    def _give_up(self, index: int) -> None:
        """Let a unit's memory go, as soon as what reads and writes it is done."""
        occupant = self._held.pop(index, None)
        self._areas.drop(index)
        if occupant is not None:
            self._leaving += [(occupant.region, occupant.arrived), (occupant.region, occupant.released)]

    def _give_up_all(self) -> None:
        """Empty the slots. Between two uses anybody may write the masters: no copy reads them then."""
        if self._held:
            self._lane.settle()
        for index in list(self._held):
            self._give_up(index)

    def _forget_slots(self) -> None:
        """Empty the slots, and plan anew for what is to be copied now."""
        self._give_up_all()
        areas = self._plan(self._masters.sizes())
        if areas.capacity > self.slot_bytes or self._running:
            self.free()  # they are too small now, or another thread is still in them
        else:
            areas.expect(self._prediction.expected)
            self._areas = areas

    def _plan(self, sizes: Sequence[int]) -> Areas:
        # Where layers in between stay, larger ones become neighbours, for whom no more room was planned.
        return Areas(sizes, self._units.layers, self.footprint, ahead=self._ahead)

    def _wrap(self) -> None:
        """Wrap the units that have weights to copy; every layer until a use has told how often it runs."""
        unknown = self._units.layers if self._trace.passes is None else 0
        self._idle = {index for index in range(len(self._units.all)) if not self._masters.of(index)}
        for index, unit in enumerate(self._units.all):
            if index < unknown or index not in self._idle:
                wrap(unit.module, index, self)
            elif wrapper_of(unit.module) is not None:
                unwrap(unit.module)
