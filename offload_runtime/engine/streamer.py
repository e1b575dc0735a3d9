"""The streamer: for the duration of a layer's `forward`, its weights are those in a slot.

Only entries of `module._parameters` are exchanged, and afterwards the very same host Parameters are back,
whatever happened inside: `try/finally` around `forward`, because torch's `always_call` hooks do not run for a
`BaseException`, which is what ComfyUI's interrupt is. Assigning `.data` or calling `module.to()` would break
quantised and GGUF tensors, and anybody who keeps a reference to a Parameter.

Weights are read through the module when they are copied, so a LoRA or a replaced Parameter is always seen.
While a layer computes, those that ran after it last time are copied into what is free of the slots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import nn

from .lane import Event, Lane
from .ledger import Ledger
from .schedule import Fetch, Region, Schedule, largest_neighbours
from .slots import Slots, layout_of, packed_bytes, why_unmovable
from .stacks import Layer, Stack, stack_layers
from .tiers import HostTier
from .trace import Trace
from .wrapper import unwrap, wrap, wrapped_by, wrapper_of


class _Exchange(NamedTuple):
    """One entry of a module's `_parameters` that is exchanged."""

    parameters: dict[str, nn.Parameter | None]
    name: str
    master: nn.Parameter


@dataclass
class _Occupant:
    """A layer in the slots, with the events that order its use.

    Attributes:
        masters: the weights that were copied; others now mean that the copy is stale.
        views: the same weights in the slots.
        region: where it lies.
        arrived: after this event it may be read.
        released: after this event it may be overwritten.
    """

    masters: list[nn.Parameter]
    views: list[nn.Parameter]
    region: Region
    arrived: Event
    released: Event = None


class Streamer:
    """Runs the layers of some stacks out of slots.

    Life cycle: `install` wraps the layers and begins a use, `allocate` takes the slots' memory, `free` gives it
    back and `uninstall` unwraps. Installed without slots, the first layer call allocates them.

    Args:
        stacks: the layers.
        lane: the way to the compute device.
        tier: where the masters live.
        ledger: counts what is done.
        budget: bytes that the slots may take; one layer is always let in.
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
        self._layers = tuple(layer for layer in stack_layers(stacks) if not _is_compiled(layer))
        self._prefixes = tuple(f"{layer.name}." for layer in self._layers)
        # Where the weights are looked up when a layer runs: walking its modules every time would cost more.
        self._entries = [list(_entries(layer.module)) for layer in self._layers]
        self._lane = lane
        self._tier = tier
        self._ledger = ledger
        self._budget = budget
        self._trace = trace or Trace()
        self._volatile = False
        self._slots: Slots | None = None
        self._schedule = Schedule(0, [])
        self._held: dict[int, _Occupant] = {}
        self._leaving: list[tuple[Region, Event]] = []  # memory that was given up, and when it is free

    @property
    def slot_bytes(self) -> int:
        """The device memory that the slots take now."""
        return self._slots.capacity if self._slots is not None else 0

    @property
    def footprint(self) -> int:
        """The most that the slots take while the component is loaded: the largest two neighbours."""
        return self._capacity([packed_bytes(_streamable(layer)) for layer in self._layers])

    def install(self, *, volatile: bool = False) -> None:
        """Wrap every layer's `forward`, in place of another streamer's wrapper if there is one.

        Args:
            volatile: the weights may be written in place between two runs of this use, so that nothing may be
                copied before it is needed, nor be kept.
        """
        self._volatile = volatile
        self._trace.begin_use(range(len(self._layers)))
        self._forget_slots()
        for index, layer in enumerate(self._layers):
            if not wrapped_by(layer.module, self):
                if wrapper_of(layer.module) is not None:
                    unwrap(layer.module)
                wrap(layer.module, index, self)

    def uninstall(self) -> None:
        """Unwrap the layers that this streamer wrapped, and no others."""
        self._forget_slots()
        for layer in self._layers:
            if wrapped_by(layer.module, self):
                unwrap(layer.module)

    def installed_layers(self) -> int:
        """Return how many layers run through this streamer now, read back from the layers."""
        return sum(wrapped_by(layer.module, self) for layer in self._layers)

    def streams(self, name: str) -> bool:
        """Tell whether the parameter of this name belongs to one of the layers."""
        return name.startswith(self._prefixes)

    def streamed_bytes(self) -> int:
        """Return what one pass copies now; resident weights are not copied."""
        return sum(self._sizes())

    def pack(self) -> None:
        """Bring the masters of every layer into the form that copies fastest."""
        packed: set[int] = set()
        for index in range(len(self._layers)):
            masters = _masters(self._exchanges(index))
            # A weight that an earlier layer uses, too, is in that layer's block, and can only be in one.
            if packed.isdisjoint(map(id, masters)):
                self._tier.pack(masters)
            packed.update(map(id, masters))

    def allocate(self) -> None:
        """Take the slots' memory now, so that nobody else plans with it: as much as the streamed layers need."""
        needed = self._capacity(self._sizes())
        if needed:
            self._ensure_slots(needed)

    def free(self) -> int:
        """Give the slots' memory back and return how many bytes that were."""
        freed = self.slot_bytes
        self._forget_slots()
        if freed:
            self._lane.settle()
        self._slots, self._schedule = None, Schedule(0, [])
        self._leaving.clear()
        self._ledger.record_slots(-freed)
        return freed

    def run(self, index: int, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call the `forward` of one of the layers with its weights in a slot."""
        position = self._trace.record(index)
        self._ledger.layer_runs += 1
        exchanges = self._exchanges(index)
        if not exchanges:
            self._look_ahead(index, position)
            return forward(*args, **kwargs)
        occupant = self._ready(index, position, _masters(exchanges))
        try:
            in_slot = {id(m): v for m, v in zip(occupant.masters, occupant.views, strict=True)}
            for exchange in exchanges:
                exchange.parameters[exchange.name] = in_slot[id(exchange.master)]
            self._look_ahead(index, position)
            return forward(*args, **kwargs)
        finally:
            for exchange in exchanges:
                exchange.parameters[exchange.name] = exchange.master
            occupant.released = self._lane.mark()

    def _ready(self, index: int, position: int, masters: list[nn.Parameter]) -> _Occupant:
        """Return the layer in a slot, copied there now if it was not expected, and ordered before later work."""
        occupant = self._held.get(index)
        if occupant is None or self._volatile or not _same(occupant.masters, masters):
            self._give_up(index)
            self._ensure_slots(packed_bytes(masters))
            if self._schedule.sizes[index] != packed_bytes(masters):
                self._forget_slots()  # ComfyUI has moved weights of it since: all is planned anew
            fetch = self._schedule.demand(index, position)
            for other in fetch.evicted:
                self._give_up(other)
            occupant = self._put(fetch, masters)
        try:
            self._lane.wait(occupant.arrived)
        except BaseException:
            self._give_up(index)
            raise
        return occupant

    def _look_ahead(self, index: int, position: int) -> None:
        """Start to copy what is expected next into what is free."""
        if self._volatile or position < 0:
            return
        if not self._tier.overlaps:
            following = self._trace.expected[position + 1 : position + 2]
            for layer in following:
                self._tier.expect(_masters(self._exchanges(layer)))
            return
        for fetch in self._schedule.ahead(index, position):
            for other in fetch.evicted:  # in any case: the plan gives their memory to others from here on
                self._give_up(other)
            masters = _masters(self._exchanges(fetch.layer))
            if packed_bytes(masters) == self._schedule.sizes[fetch.layer]:
                self._put(fetch, masters)
            else:  # its weights have been moved since the plan was made; it is copied when it runs
                self._schedule.drop(fetch.layer)

    def _put(self, fetch: Fetch, masters: list[nn.Parameter]) -> _Occupant:
        slots, region = self._slots, fetch.region
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
        occupant = self._held[fetch.layer] = _Occupant(masters, views, region, arrived)
        return occupant

    def _give_up(self, index: int) -> None:
        """Let a layer's memory go, as soon as what reads and writes it is done."""
        occupant = self._held.pop(index, None)
        self._schedule.drop(index)
        if occupant is not None:
            self._leaving += [(occupant.region, occupant.arrived), (occupant.region, occupant.released)]

    def _ensure_slots(self, capacity: int) -> None:
        if self._slots is None or self._slots.capacity < capacity:
            self.free()
            self._slots = Slots(max(capacity, self._capacity(self._sizes())), self._lane.device)
            self._ledger.record_slots(self._slots.capacity)
            # The memory may be what compute has just given back, and is still working on.
            self._leaving = [(Region(0, self._slots.capacity), self._lane.mark())]
            self._begin_schedule()

    def _begin_schedule(self) -> None:
        self._schedule = Schedule(self.slot_bytes, self._sizes())
        self._schedule.expect(self._trace.expected)

    def _sizes(self) -> list[int]:
        """Return what each layer takes in the slots now; resident weights take nothing."""
        return [packed_bytes(_masters(self._exchanges(index))) for index in range(len(self._layers))]

    def _capacity(self, sizes: Sequence[int]) -> int:
        largest = max(sizes, default=0)
        if not self._tier.overlaps:
            return largest
        pair = largest_neighbours(sizes)
        return max(largest, pair if self._budget is None else min(pair, self._budget))

    def _forget_slots(self) -> None:
        """Drop what the slots hold. Between two uses anybody may write the masters: no copy reads them then."""
        for index, occupant in list(self._held.items()):
            self._give_up(index)
            self._lane.finish(occupant.arrived)
        if self._slots is not None:
            self._begin_schedule()

    def _exchanges(self, index: int) -> list[_Exchange]:
        return [
            _Exchange(parameters, name, parameter)
            for parameters, name in self._entries[index]
            if (parameter := parameters.get(name)) is not None
            and self._tier.holds(parameter)
            and why_unmovable(parameter) is None
        ]


def _streamable(layer: Layer) -> list[nn.Parameter]:
    """Return the weights that are streamed when they are on the host, wherever they are now."""
    return [
        parameter
        for parameter in layer.module.parameters()
        if parameter.device.type not in ("cpu", "meta") or why_unmovable(parameter) is None
    ]


def _is_compiled(layer: Layer) -> bool:
    """Tell whether `torch.compile` made it: that guards its weights, and would compile anew for other ones."""
    return "_orig_mod" in layer.name.split(".") or hasattr(layer.module.forward, "_torchdynamo_orig_callable")


def _masters(exchanges: Sequence[_Exchange]) -> list[nn.Parameter]:
    return list({id(e.master): e.master for e in exchanges}.values())  # a tied weight is copied once


def _same(one: Sequence[nn.Parameter], other: Sequence[nn.Parameter]) -> bool:
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))


def _entries(module: nn.Module) -> Iterator[tuple[dict[str, nn.Parameter | None], str]]:
    for child in module.modules():
        for name in child._parameters:
            yield child._parameters, name
