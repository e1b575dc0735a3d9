"""The streamer: for the duration of a layer's `forward`, its weights are those in a slot.

Only entries of `module._parameters` are exchanged, and afterwards the very same host Parameters are back,
whatever happened inside: `try/finally` around `forward`, because torch's `always_call` hooks do not run for a
`BaseException`, which is what ComfyUI's interrupt is. Assigning `.data` or calling `module.to()` would break
quantised and GGUF tensors, and anybody who keeps a reference to a Parameter.

Weights are read through the module when they are copied, so a LoRA or a replaced Parameter is always seen.
While a layer computes, the one that ran after it last time is copied into the other end of the slots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from torch import nn

from .lane import Event, Lane
from .ledger import Ledger
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
    """A layer in one side of the slots, with the events that order its use.

    Attributes:
        layer: its index.
        masters: the weights that were copied; others now mean that the copy is stale.
        views: the same weights in the slot.
        arrived: after this event they may be read.
    """

    layer: int
    masters: list[nn.Parameter]
    views: list[nn.Parameter]
    size: int
    arrived: Event


class Streamer:
    """Runs the layers of some stacks out of two slots.

    Life cycle: `install` wraps the layers and begins a use, `allocate` takes the slots' memory, `free` gives it
    back and `uninstall` unwraps. Installed without slots, the first layer call allocates them.

    Args:
        stacks: the layers.
        lane: the way to the compute device.
        tier: where the masters live.
        ledger: counts what is done.
        budget: bytes that the slots may take; one layer is always let in.
    """

    def __init__(
        self, stacks: Sequence[Stack], lane: Lane, tier: HostTier, ledger: Ledger, budget: int | None = None
    ) -> None:
        self._layers = tuple(layer for layer in stack_layers(stacks) if not _is_compiled(layer))
        self._prefixes = tuple(f"{layer.name}." for layer in self._layers)
        self._lane = lane
        self._tier = tier
        self._ledger = ledger
        self._budget = budget
        self._trace = Trace(range(len(self._layers)))
        self._slots: Slots | None = None
        self._sides: list[_Occupant | None] = [None, None]
        self._free_after: list[Event] = [None, None]  # after these events a side may be overwritten
        self._side = 1  # the side that ran last
        self._volatile = False

    @property
    def slot_bytes(self) -> int:
        """The device memory that the slots take now."""
        return self._slots.capacity if self._slots is not None else 0

    @property
    def footprint(self) -> int:
        """The most that the slots take while the component is loaded: the largest two neighbours."""
        return self._capacity(
            packed_bytes(_unique(p for _, _, p in _entries(layer.module) if _may_be_streamed(p)))
            for layer in self._layers
        )

    def install(self, *, volatile: bool = False) -> None:
        """Wrap every layer's `forward`, in place of another streamer's wrapper if there is one.

        Args:
            volatile: the weights may be written in place between two runs of this use, so that nothing may be
                copied before it is needed, nor be kept.
        """
        self._volatile = volatile
        self._trace.begin_use()
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

    def pack(self) -> None:
        """Bring the masters of every layer into the form that copies fastest."""
        packed: set[int] = set()
        for layer in self._layers:
            masters = _masters(self._exchanges(layer))
            # A weight that an earlier layer uses, too, is in that layer's block, and can only be in one.
            if packed.isdisjoint(map(id, masters)):
                self._tier.pack(masters)
            packed.update(map(id, masters))

    def allocate(self) -> None:
        """Take the slots' memory now, so that nobody else plans with it: as much as the streamed layers need."""
        needed = self._needed()
        if needed:
            self._ensure_slots(needed)

    def free(self) -> int:
        """Give the slots' memory back and return how many bytes that were."""
        freed = self.slot_bytes
        if freed:
            self._lane.settle()
        self._slots = None
        self._forget_slots()
        self._free_after = [None, None]
        self._ledger.record_slots(-freed)
        return freed

    def run(self, index: int, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call the `forward` of one of the layers with its weights in a slot."""
        self._trace.record(index)
        self._ledger.layer_runs += 1
        exchanges = self._exchanges(self._layers[index])
        if not exchanges:
            self._look_ahead(None)
            return forward(*args, **kwargs)
        occupant = self._ready(index, _masters(exchanges))
        try:
            in_slot = {id(m): v for m, v in zip(occupant.masters, occupant.views, strict=True)}
            for exchange in exchanges:
                exchange.parameters[exchange.name] = in_slot[id(exchange.master)]
            self._look_ahead(self._side)
            return forward(*args, **kwargs)
        finally:
            for exchange in exchanges:
                exchange.parameters[exchange.name] = exchange.master
            self._free_after[self._side] = self._lane.mark()

    def _ready(self, index: int, masters: list[nn.Parameter]) -> _Occupant:
        """Return the layer in a slot, copied there now if it was not expected, and ordered before later work."""
        side = None if self._volatile else self._side_of(index, masters)
        self._side = 1 - self._side if side is None else side
        occupant = self._sides[self._side] if side is not None else None
        if occupant is None:
            occupant = self._put(index, masters, self._side)
        try:
            self._lane.wait(occupant.arrived)
        except BaseException:
            self._sides[self._side] = None
            raise
        return occupant

    def _look_ahead(self, busy: int | None) -> None:
        """Start to copy the layer that is expected next into the side that is not busy."""
        index = self._trace.next()
        if index is None or self._volatile:
            return
        masters = _masters(self._exchanges(self._layers[index]))
        if not masters:
            return
        if not self._tier.overlaps:
            self._tier.expect(masters)
            return
        side = 1 - busy if busy is not None else 1 - self._side
        if self._side_of(index, masters) is not None:
            return
        current = self._sides[busy] if busy is not None else None
        if (current.size if current is not None else 0) + packed_bytes(masters) <= self.slot_bytes:
            self._put(index, masters, side)

    def _side_of(self, index: int, masters: list[nn.Parameter]) -> int | None:
        for side, occupant in enumerate(self._sides):
            if occupant is not None and occupant.layer == index and _same(occupant.masters, masters):
                return side
        return None

    def _put(self, index: int, masters: list[nn.Parameter], side: int) -> _Occupant:
        size = packed_bytes(masters)
        slots = self._ensure_slots(size)
        self._sides[side] = None
        after = [self._free_after[side]]
        other = self._sides[1 - side]
        if other is not None and other.size + size > slots.capacity:
            self._sides[1 - side] = None
            after += [self._free_after[1 - side], other.arrived]
        start = slots.start(side, size)
        views = slots.views(start, layout_of(masters))
        block = self._tier.packed(masters)

        def transfer() -> None:
            if block is not None:
                slots.region(start, block.numel()).copy_(block, non_blocking=True)
            else:
                for place, master in zip(views, masters, strict=True):
                    place.copy_(master, non_blocking=True)

        queue = self._lane.copy_in_background if self._tier.holds_the_host(block) else self._lane.copy
        arrived = queue(tuple(after), transfer)
        if self._volatile:
            self._lane.finish(arrived)
        self._tier.finish(masters)
        self._ledger.record_move(self._tier.name, sum(master.nbytes for master in masters))
        occupant = self._sides[side] = _Occupant(index, masters, views, size, arrived)
        return occupant

    def _exchanges(self, layer: Layer) -> list[_Exchange]:
        return [
            _Exchange(module._parameters, name, parameter)
            for module, name, parameter in _entries(layer.module)
            if why_unmovable(parameter) is None and self._tier.holds(parameter)
        ]

    def _needed(self) -> int:
        """Return the slot memory for what is streamed now; resident weights need none."""
        return self._capacity(packed_bytes(_masters(self._exchanges(layer))) for layer in self._layers)

    def _capacity(self, layer_sizes: Iterable[int]) -> int:
        sizes = list(layer_sizes)
        largest = max(sizes, default=0)
        if not self._tier.overlaps:
            return largest
        pair = max((a + b for a, b in pairwise(sizes)), default=largest)
        return max(largest, pair if self._budget is None else min(pair, self._budget))

    def _ensure_slots(self, capacity: int) -> Slots:
        if self._slots is None or self._slots.capacity < capacity:
            self.free()
            self._slots = Slots(max(capacity, self._needed()), self._lane.device)
            self._ledger.record_slots(self._slots.capacity)
            # The memory may be what compute has just given back, and is still working on.
            self._free_after = [self._lane.mark()] * 2
        return self._slots

    def _forget_slots(self) -> None:
        """Drop what the slots hold. Between two uses anybody may write the masters: no copy reads them then."""
        occupants, self._sides = self._sides, [None, None]
        for occupant in occupants:
            if occupant is not None:
                self._lane.finish(occupant.arrived)


def _masters(exchanges: Sequence[_Exchange]) -> list[nn.Parameter]:
    return _unique(e.master for e in exchanges)  # a tied weight is copied once


def _unique(parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    return list({id(parameter): parameter for parameter in parameters}.values())


def _may_be_streamed(parameter: nn.Parameter) -> bool:
    """Tell whether a weight is streamed when it is on the host; one that is not now is an accelerator's kind."""
    return why_unmovable(parameter) is None or parameter.device.type not in ("cpu", "meta")


def _is_compiled(layer: Layer) -> bool:
    """Tell whether `torch.compile` made it: that guards its weights, and would compile anew for other ones."""
    return "_orig_mod" in layer.name.split(".") or hasattr(layer.module.forward, "_torchdynamo_orig_callable")


def _same(one: Sequence[nn.Parameter], other: Sequence[nn.Parameter]) -> bool:
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))


def _entries(module: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Parameter]]:
    for child in module.modules():
        for name, parameter in child._parameters.items():
            if parameter is not None:
                yield child, name, parameter
