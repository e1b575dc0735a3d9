"""The masters: what is to be copied of each unit now, read from its modules whenever it is asked for.

So a LoRA or a replaced Parameter is always seen, and a weight that ComfyUI has moved to the device is not copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import nn

from .occupant import Exchange, Occupant, masters_of
from .parts import distinct_parts, parts_of
from .slots import packed_bytes, why_unmovable
from .stacks import Layer, why_left
from .tiers import Tier
from .units import Units


class Masters:
    """The weights of some units on the host.

    Args:
        layers: the layers.
        units: the units that they are moved in.
        tier: where the masters live.
        running: unit → what runs of it now, whose masters are not in the modules.
    """

    def __init__(
        self, layers: Sequence[Layer], units: Units, tier: Tier, running: Mapping[int, Occupant]
    ) -> None:
        self._layers = layers
        self._units = units
        self._tier = tier
        self._running = running
        self._left: set[int] = set()  # units of layers that are ComfyUI's, whole

    def find_left(self) -> None:
        """Note which layers cannot be taken apart: of such a one, nothing is copied."""
        left = [layer for layer in self._layers if why_left(layer) is not None]
        modules = {id(module) for layer in left for module in (layer.module, *layer.parts)}
        self._left = {i for i, unit in enumerate(self._units.all) if id(unit.module) in modules}

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers of which weights may be copied."""
        return tuple(layer for index, layer in enumerate(self._layers) if index not in self._left)

    def are_to_copy(self, parameter: nn.Parameter) -> bool:
        """Tell whether a weight is copied when its unit runs."""
        return self._tier.holds(parameter) and why_unmovable(parameter) is None

    def parts(self) -> list[torch.Tensor]:
        """Return the plain tensors of all weights that are copied when their units run."""
        return distinct_parts(p for unit in self._units.all for p in unit.parameters() if self.are_to_copy(p))

    def of(self, index: int) -> Sequence[Exchange]:
        """Return what is exchanged of one unit when it runs."""
        if index in self._left:
            return []
        if index in self._running:
            return self._running[index].exchanges
        return [
            Exchange(parameters, name, parameter, parts_of(parameter))
            for parameters, name in self._units.all[index].entries
            if (parameter := parameters.get(name)) is not None and self.are_to_copy(parameter)
        ]

    def sizes(self) -> list[int]:
        """Return what each unit takes in the slots now, in bytes; resident weights take nothing."""
        return [packed_bytes(masters) for masters in self.of_each()]

    def of_each(self) -> Iterator[list[torch.Tensor]]:
        """Yield the masters of each unit, part by part."""
        for index in range(len(self._units.all)):
            yield masters_of(self.of(index))
