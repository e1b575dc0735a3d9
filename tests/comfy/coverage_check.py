"""Examine one model family: which layers are found, whether they are called, and whether streaming them is right.

The streamed run is stricter than a GPU: its host tier keeps the true weights in blocks of its own and fills the
masters with NaN. Whoever reads a layer's weight while that layer does not run, or past the engine, gets NaN.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch import nn

from offload_runtime.engine import Lane, Ledger, Stack, Streamer, parameter_bytes
from offload_runtime.engine.slots import layout_of, packed_bytes, views_into, why_unmovable
from offload_runtime.engine.stacks import stack_layers

Shrink = Callable[[], Iterable[AbstractContextManager[Any]]]
"""Makes the patches for sizes that no argument reaches."""


@dataclass(frozen=True, eq=False)
class Case:
    """One model family.

    Attributes:
        kind: `text encoder`, `image encoder`, `audio encoder`, `vae`, `diffusion model` or `other model`.
        family: what people call it.
        needs: `module:name` of its ComfyUI class; a version without it has no such family.
        make: returns the model that the patcher would hold, tiny.
        run: uses it as ComfyUI does and returns tensors.
        real: returns the model in its real geometry on the meta device, for the shares in the table.
        idle: start of a layer's name → why this run does not call it.
        reads_past: whether it hands the weight of an operation to ComfyUI's cast, instead of calling the operation:
            that is right on a device, where the weight is on the host, and NaN here.
        left_alone: part of the reason for which the family is not streamed; empty when it is.
        note: what else a reader of the table should know.
    """

    kind: str
    family: str
    needs: str
    make: Callable[[], nn.Module]
    run: Callable[[Any], Any]
    real: Callable[[], nn.Module] | None = None
    idle: Mapping[str, str] = field(default_factory=dict)
    reads_past: bool = False
    left_alone: str = ""
    note: str = ""

    def missing(self) -> str | None:
        """Return what this ComfyUI lacks for the family, or None."""
        module, name = self.needs.split(":")
        try:
            return None if hasattr(importlib.import_module(module), name) else self.needs
        except ModuleNotFoundError as error:
            if error.name is None or not module.startswith(error.name):
                raise
            return module


def ramp(*shape: int) -> torch.Tensor:
    """Return an input that is the same every time."""
    return torch.linspace(-1, 1, torch.Size(shape).numel()).reshape(shape)


def smaller(owner: str, name: str, **sizes: Any) -> AbstractContextManager[Any]:
    """Let a class be made with other sizes than its caller writes down."""
    module = importlib.import_module(owner)
    cls = getattr(module, name)
    return mock.patch.object(module, name, lambda *args, **given: cls(*args, **{**given, **sizes}))


@contextmanager
def all_of(patches: Iterable[AbstractContextManager[Any]]) -> Iterator[None]:
    """Enter several patches at once."""
    with ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        yield


def build(case: Case) -> nn.Module:
    """Make a family's model and fill it with small random weights, the same every time."""
    deterministic = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)  # what is not initialised is then NaN
    try:
        model = case.make()
    finally:
        torch.use_deterministic_algorithms(deterministic)
    seed(model)
    return model


def seed(model: nn.Module) -> None:
    """Fill a model with random weights, scales of norms near one, so that deep models stay finite."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(False)
            values = torch.randn(parameter.shape, generator=generator) * 0.05
            if parameter.dim() == 1 and name.endswith(("weight", "gamma", "scale")):
                values += 1
            parameter.copy_(values)
        for buffer in model.buffers():  # a file would bring what is not initialised
            if buffer.is_floating_point() and buffer.isnan().any():
                buffer.fill_(0.5)
    model.eval()


def run_seeded(case: Case, model: nn.Module) -> list[torch.Tensor]:
    """Use the model once; encoders that draw noise draw the same every time."""
    torch.manual_seed(2)
    with torch.inference_mode():
        return [tensor.clone() for tensor in _tensors(case.run(model))]


class PoisonedHost:
    """A host tier that holds everything, and whose masters are NaN outside of their slots."""

    name = "poisoned"
    overlaps = True

    def __init__(self) -> None:
        self._blocks: dict[tuple[int, ...], torch.Tensor] = {}
        self._true: dict[int, tuple[nn.Parameter, torch.Tensor]] = {}
        self._poisoned = False

    def begin_use(self, live: Iterable[torch.Tensor]) -> None:
        """Nothing to do."""

    def holds(self, tensor: torch.Tensor) -> bool:
        """All of it, but not what lies in a slot."""
        return not self._poisoned or id(tensor) in self._true

    def pack(self, masters: Sequence[nn.Parameter]) -> None:
        """Keep the true bytes of a layer."""
        block = torch.empty(packed_bytes(masters), dtype=torch.uint8)
        for master, place in zip(masters, views_into(block, 0, layout_of(masters)), strict=True):
            place.copy_(master)
            self._true[id(master)] = (master, master.detach().clone())
        self._blocks[tuple(map(id, masters))] = block

    def packed(self, masters: Sequence[nn.Parameter]) -> torch.Tensor:
        """Return the true bytes."""
        return self._blocks[tuple(map(id, masters))]

    def blocks_the_host(self, block: torch.Tensor | None) -> bool:
        """Nothing to wait for."""
        return False

    def expect(self, masters: Sequence[nn.Parameter]) -> None:
        """Nothing to do."""

    def finish(self, masters: Sequence[nn.Parameter]) -> None:
        """Nothing to do."""

    def poison(self) -> None:
        """Make the masters useless."""
        self._poisoned = True
        for master, _ in self._true.values():
            master.detach().fill_(float("nan") if master.is_floating_point() else 0)

    def heal(self) -> None:
        """Give the masters their values back."""
        for master, value in self._true.values():
            master.detach().copy_(value)


class RecordingStreamer(Streamer):
    """Remembers in which order the layers ran."""

    order: list[int]

    def run(self, index: int, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Note the layer, and run it."""
        self.order.append(index)
        return super().run(index, forward, args, kwargs)


def run_streamed(
    case: Case, model: nn.Module, stacks: Sequence[Stack], budget: int | None = None
) -> tuple[list[list[torch.Tensor]], list[int]]:
    """Use the model twice out of slots, the second time with what the first has taught the trace.

    Args:
        budget: bytes for the slots; for fewer than two layers take, the layers are split into operations.

    Returns:
        Both results, and the order of the layers, and of operations behind them, in one use.
    """
    tier = PoisonedHost()
    streamer = RecordingStreamer(stacks, Lane(torch.device("cpu")), tier, Ledger(), budget)
    streamer.pack()
    tier.poison()
    results = []
    try:
        for _ in range(2):
            streamer.order = []
            streamer.install()
            results.append(run_seeded(case, model))
    finally:
        streamer.uninstall()
        streamer.free()
        tier.heal()
    return results, streamer.order


def attributes(model: nn.Module) -> dict[str, set[str]]:
    """Return the names of all instance attributes, to see what stays behind."""
    return {name: set(module.__dict__) for name, module in model.named_modules()}


def faults_of_structure(model: nn.Module, stacks: Sequence[Stack]) -> list[str]:
    """Return what is wrong with the stacks of a model, in words."""
    layers = list(stack_layers(stacks))
    owner: dict[int, str] = {}
    faults = []
    for layer in layers:
        for name, parameter in layer.module.named_parameters():
            other = owner.setdefault(id(parameter), layer.name)
            if other != layer.name:
                faults.append(f"{layer.name}.{name} also belongs to {other}")
            if why_unmovable(parameter) is not None:
                faults.append(f"{layer.name}.{name} cannot be copied: {why_unmovable(parameter)}")
        inside = [other for other in layers if other is not layer and other.name.startswith(layer.name + ".")]
        faults += [f"{other.name} lies inside {layer.name}" for other in inside]
        if model.get_submodule(layer.name) is not layer.module:
            faults.append(f"{layer.name} is not where its name says")
    return faults


def share_in_layers(model: nn.Module, stacks: Sequence[Stack]) -> float:
    """Return which part of the weights' bytes lies in layers."""
    return sum(layer.bytes for layer in stack_layers(stacks)) / parameter_bytes(model)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from _tensors(list(value.values()))
    elif isinstance(value, Iterable) and not isinstance(value, str):
        for item in value:
            yield from _tensors(item)
