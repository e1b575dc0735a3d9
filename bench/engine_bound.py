"""The time below which no run of a model can be that copies some of its layers whenever they run.

Copies follow one another on a link that never pauses and never waits for memory, one for each operation that has
weights; an operation computes when its weights have arrived and the one before it is done. No latency, no launches.
What the kernels take is read from a run of the resident model, and no bound is below that run.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from torch import nn

from tests.sim import Accelerator
from tests.sim.timeline import COMPUTE


@dataclass(frozen=True)
class Work:
    """What a device has to do in one use of a model.

    Attributes:
        layers: how many there are.
        lead_us: kernels before the first operation of a layer, in microseconds.
        runs: the operations with weights in the order they run: layer, bytes of the weights, and the microseconds
            of the kernels from there to the next one.
        resident_ms: the time of the whole use when everything is on the device.
    """

    layers: int
    lead_us: float
    runs: Sequence[tuple[int, int, float]]
    resident_ms: float


def lower_bound(work: Work, streamed: Set[int], rate: float) -> float:
    """Return the bound in milliseconds.

    Args:
        streamed: the layers that are copied whenever they run.
        rate: bytes per second from their masters to the device.
    """
    arrived, done = 0.0, work.lead_us
    for layer, size, compute in work.runs:
        if layer in streamed:
            arrived += size / rate * 1e6
            done = max(done, arrived)
        done += compute
    return max(done / 1e3, work.resident_ms)


class Steps:
    """Notes in the simulated card's timeline where each operation begins, in the one use that follows."""

    def __init__(self, sim: Accelerator, layers: Sequence[nn.Module]) -> None:
        self._timeline = sim.timeline
        self._layers = len(layers)
        self._begun = [(-1, 0, len(sim.timeline))]
        for index, layer in enumerate(layers):
            for operation in layer.modules():
                size = sum(weight.nbytes for weight in operation.parameters(recurse=False))
                if size:
                    operation.register_forward_pre_hook(lambda *_, i=index, size=size: self._note(i, size))

    def work(self, resident_ms: float) -> Work:
        """Return what the use did, which took so many milliseconds."""
        ends = [start for *_, start in self._begun[1:]] + [len(self._timeline)]
        runs = [
            (layer, size, self._kernels(start, end))
            for (layer, size, start), end in zip(self._begun, ends, strict=True)
        ]
        return Work(self._layers, runs[0][2], runs[1:], resident_ms)

    def _note(self, layer: int, size: int) -> None:
        self._begun.append((layer, size, len(self._timeline)))

    def _kernels(self, start: int, end: int) -> float:
        return sum(i.duration for i in self._timeline.intervals[start:end] if i.kind == COMPUTE)
