"""Runs of the engine on the simulated card: a model, a budget and a host tier, and what came out.

The models are shape-only stand-ins with real dimensions. What is not in a layer (token table, last norm, projection)
is on the device before, as it is for SGLang and for the lower bound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import nn

from offload_runtime.engine import Lane, Layer, Ledger, MemoryTier, PackedWeights, Stack, Streamer
from tests.sim import Accelerator
from tests.sim.crosscheck.decoder import Decoder
from tests.sim.crosscheck.standins import GEOMETRIES, StandIn, build
from tests.sim.crosscheck.systems import measure
from tests.sim.profile import profile_named

from .engine_bound import Steps, Work, lower_bound

MODELS = (*GEOMETRIES, "kl_vae")
OWN, HALF, ALL, NARROW = "own choice", "half resident", "all resident", "two weights"
BUDGETS = (OWN, HALF, ALL, NARROW)
MB = 1e6
EVERYTHING = 1 << 40
"""Device memory of the simulated card: no run is refused, its peak is read afterwards."""


@dataclass(frozen=True)
class Case:
    """What to run.

    Attributes:
        budget: device memory for the layers. `own choice`: what the engine takes for its slots, at most two layers.
            `half resident`: every second layer stays as well. `all resident`: nothing is streamed. `two weights`:
            slots of twice the largest weight and 64 MB.
        passes: how often a use runs the model, where it is not as often as the stand-in does by itself.
        first: measure the first use, of which nobody knows the order. Gated layers then call their gate before what
            they have registered before it.
    """

    model: str
    profile: str = "rtx4090"
    budget: str = OWN
    pinned: bool = True
    passes: int | None = None
    first: bool = False


@dataclass(frozen=True)
class Result:
    """What the measured run took.

    Attributes:
        layers: MB of slots and resident layers at their peak, as the engine says.
        weights: MB of all weights on the device at their peak, as the simulator counted.
        copied: MB copied to the device.
    """

    ms: float
    layers: float
    weights: float
    copied: float


def layers_of(model: StandIn | Decoder) -> list[Layer]:
    """Return what is streamed: blocks; of the image decoder their units, as ComfyUI's are found."""
    if isinstance(model, Decoder):
        found = {
            f"blocks.{i}.{j}": unit for i, stage in enumerate(model.blocks) for j, unit in enumerate(stage)
        }
    else:
        found = {f"blocks.{i}": block for i, block in enumerate(model.blocks)}
    return [Layer(name, module, operations(module)) for name, module in found.items()]


def looped(model: StandIn | Decoder, passes: int | None) -> StandIn | Decoder:
    """Let a use run a model so often."""
    if passes is not None:
        model.geometry = replace(model.geometry, passes=passes)
    return model


def operations(module: nn.Module) -> tuple[nn.Module, ...]:
    """Return the matrix products and convolutions in a layer, which a small budget splits it into."""
    return tuple(child for child in module.modules() if isinstance(child, nn.Linear | nn.Conv2d))


def resident_layers(budget: str, count: int) -> set[int]:
    """Return which layers stay on the device for good."""
    return {HALF: set(range(1, count, 2)), ALL: set(range(count))}.get(budget, set())


def slot_budget(budget: str, layers: Sequence[Layer]) -> int | None:
    """Return what the slots may take in bytes; None is what the engine takes by itself."""
    if budget != NARROW:
        return None
    return 2 * max(weight.nbytes for layer in layers for weight in layer.module.parameters()) + int(64 * MB)


def makes_sense(case: Case) -> bool:
    """Tell whether a case differs from the others: two weights and 64 MB may be more than two layers."""
    budget = slot_budget(case.budget, layers := layers_of(build(case.model)))
    return budget is None or budget < max(a.bytes + b.bytes for a, b in pairwise(layers))


def stream(sim: Accelerator, case: Case) -> tuple[Callable[[], object], Callable[[], float]]:
    """Set a model up to run through the engine.

    Returns:
        What uses the model once, and what tells the MB that slots and resident layers take.
    """
    model = looped(build(case.model), case.passes)
    for block in model.blocks if case.first else ():
        block.gate_first = True
    layers = layers_of(model)
    resident = [layers[i].module for i in resident_layers(case.budget, len(layers))]
    for module in (*rest_of(model), *resident):
        module.to(sim.device)
    ledger = Ledger()
    tier = MemoryTier(sim.device, PackedWeights(sim.pin if case.pinned else lambda block: False))
    budget = slot_budget(case.budget, layers)
    streamer = Streamer([Stack("blocks", tuple(layers))], Lane(sim.device), tier, ledger, budget)
    streamer.pack()
    streamer.allocate()
    given = model.sample(sim.device)
    kept = sum(weight.nbytes for module in resident for weight in module.parameters())

    def use() -> None:
        streamer.install()
        model(given)

    return use, lambda: (kept + ledger.slot_peak) / MB


def run(case: Case) -> Result:
    """Run a case twice, and measure the second time, for which the first has taught the engine the order.

    Of a first use there is no second time.
    """
    with Accelerator(case.profile, shapes=True, cap=EVERYTHING) as sim:
        use, layers_mb = stream(sim, case)
        row = measure(sim, use, runs_before=0 if case.first else 1)
    return Result(row.ms, layers_mb(), row.weights, row.copied)


def bound(case: Case, work: Work) -> float:
    """Return the milliseconds below which no run is that copies the same layers whenever they run."""
    profile = profile_named(case.profile)
    rate = profile.link * (1 if case.pinned else profile.pageable_factor)
    return lower_bound(work, set(range(work.layers)) - resident_layers(case.budget, work.layers), rate)


def work_of(name: str, profile: str) -> Work:
    """Run the resident model on the simulated card, and write down what the card has to do."""
    with Accelerator(profile, shapes=True, cap=EVERYTHING) as sim, torch.inference_mode():
        model = build(name).to(sim.device)
        given = model.sample(sim.device)
        steps = Steps(sim, [layer.module for layer in layers_of(model)])
        with sim.measure() as measured:
            model(given)
        return steps.work(measured.ms)


def rest_of(model: nn.Module) -> list[nn.Module]:
    """Return what is not in a layer."""
    return [child for name, child in model.named_children() if name != "blocks"]
