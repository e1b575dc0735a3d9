"""Which of a model's layers can be read from the model file: those of which the file holds most.

ComfyUI's loaders convert many files. A wider dtype and projections that were fused in the file can be read all the
same; a rounded dtype, a transposed matrix or another quantisation cannot. A file that has a few norms of each layer is
not one that layers can be read from.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from torch import nn

from ..engine import Layer, Stack, WeightFile, parameter_bytes
from ..engine.stacks import stack_layers
from .record import record_of

MOST = 0.5
"""The share of a layer's bytes that the file must hold."""


class FileLayers:
    """What files hold of a model, to the last bit of what is computed with; the model stays as it is until `lay`.

    Args:
        model: the model.
        stacks: its layers.
        files: safetensors files that its weights may have come from.

    Attributes:
        bytes: how much of the layers can be read from a file.
        beside: how much more rests there with them.
        missing: name → a weight in memory, or a part of one, that no file has.
        lacks_layers: whether there are layers that cannot be read from a file.
    """

    def __init__(self, model: nn.Module, stacks: Sequence[Stack], files: Sequence[Path]) -> None:
        self._record = record = record_of(model)
        record.rest.while_used_by(self)  # or what rests there for an earlier user may come back in between
        movable = _movable(model, stacks)
        self._found = record.mapped.find(movable, files, itertools.chain(model.parameters(), model.buffers()))
        held = {layer: self._held(layer) for layer in stack_layers(stacks)}
        whole = {layer: size for layer, size in held.items() if size > MOST * parameter_bytes(layer.module)}
        self.bytes = sum(whole.values())
        inside = {id(p) for layer in held.keys() - whole.keys() for p in layer.module.parameters()}
        self._rests = [p for p in movable.values() if id(p) not in inside] if whole else []
        resting = {id(p): p for p in self._rests}.values()
        self.missing = self._found.missing
        self.lacks_layers = len(whole) < len(held)
        self.beside = sum(map(self._bytes_in_file, resting)) - self.bytes

    def lay(self) -> None:
        """Let these layers rest in the file, and the tables with them."""
        self._record.mapped.lay(self._found, self._rests)
        self._record.rest.read_the_rest_later()

    def readers_of(self, file: Path) -> set[WeightFile]:
        """Return what reads a file, if any of the model is there."""
        return self._found.readers_of(file)

    def bytes_in(self, folder: Path) -> int:
        """Return how much of it is in the files of a folder, or was found there."""
        return self._found.bytes_in(folder) + self._record.mapped.bytes_in(folder)

    def _held(self, layer: Layer) -> int:
        parameters = {id(p): p for p in layer.module.parameters()}.values()
        return sum(map(self._bytes_in_file, parameters))

    def _bytes_in_file(self, parameter: nn.Parameter) -> int:
        return self._found.bytes_of(parameter) + self._record.mapped.bytes_at_rest(parameter)


def _movable(model: nn.Module, stacks: Sequence[Stack]) -> dict[str, nn.Parameter]:
    """Return the weights that may rest in a file: those copied into a slot, and tables that are only looked up.

    Other weights are used where they are, and a result can depend on how its operands are aligned in memory.
    """
    layers = {
        f"{layer.name}.{name}": parameter
        for layer in stack_layers(stacks)
        for name, parameter in layer.module.named_parameters()
    }
    tables = {
        f"{name}.{key}": parameter
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding)
        for key, parameter in module.named_parameters(recurse=False)
    }
    return layers | tables
