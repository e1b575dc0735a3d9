"""The time below which no run of a model can be that copies some of its layers each time they run.

Copies follow one another on a link that never pauses and never has to wait for memory; a layer computes when its copy
has arrived and the layer before it is done. No latency, no launches. What the kernels of each layer take is read from
a run of the resident model, and no bound is below that run.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

import torch

from tests.sim import Accelerator
from tests.sim.crosscheck.standins import build
from tests.sim.timeline import COMPUTE


@dataclass(frozen=True)
class Work:
    """What a device has to do for one use of a model.

    Attributes:
        sizes: layer → bytes.
        lead_us: kernels before the first layer, in microseconds.
        steps: layers in the order they run, and the microseconds of the kernels from there to the next one.
        resident_ms: the time of the whole run when everything is on the device.
    """

    sizes: Sequence[int]
    lead_us: float
    steps: Sequence[tuple[int, float]]
    resident_ms: float

    @property
    def layers(self) -> int:
        """How many there are."""
        return len(self.sizes)


def work_of(name: str, profile: str) -> Work:
    """Run the resident model on a simulated card and write down what it does."""
    from .engine_cases import EVERYTHING, layers_of, second_run

    with Accelerator(profile, shapes=True, cap=EVERYTHING) as sim:
        model = build(name).to(sim.device)
        layers = [layer.module for layer in layers_of(model)]
        entered: list[tuple[int, int]] = []
        for index, layer in enumerate(layers):
            layer.register_forward_pre_hook(lambda *_, index=index: entered.append((index, len(sim.timeline))))
        given = model.sample(sim.device)

        def use() -> None:
            entered.clear()
            entered.append((-1, len(sim.timeline)))
            model(given)

        measured = second_run(sim, use)
        kernels = sim.timeline.intervals
    ends = [start for _, start in entered[1:]] + [len(kernels)]
    spans = [sum(k.duration for k in kernels[start:end] if k.kind == COMPUTE) for (_, start), end in zip(entered, ends, strict=True)]
    sizes = [sum(p.nbytes for p in layer.parameters()) for layer in layers]
    return Work(sizes, spans[0], list(zip((index for index, _ in entered[1:]), spans[1:], strict=True)), measured.ms)


def lower_bound(work: Work, streamed: Set[int], rate: float) -> float:
    """Return the bound in milliseconds.

    Args:
        streamed: the layers that are copied whenever they run.
        rate: bytes per second from their masters to the device.
    """
    arrived, done = 0.0, work.lead_us
    for layer, compute in work.steps:
        if layer in streamed:
            arrived += work.sizes[layer] / rate * 1e6
            done = max(done, arrived)
        done += compute
    return max(done / 1e3, work.resident_ms)
