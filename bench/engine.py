"""The engine beside its peers, on the simulated card: `python -m bench.engine [model,…]`.

Everything here is simulated (see `tests/sim/README.md`): no number is a measurement of a GPU. The models are
shape-only stand-ins with real dimensions; the peers' figures are those that the simulator reproduces in
`tests/sim/crosscheck`. Times are of the second run; embedding, norm and head are on the device, as they are for
SGLang and the lower bound.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch

from offload_runtime.engine import Lane, Layer, Ledger, MemoryTier, PackedWeights, Stack, Streamer
from tests.sim import Accelerator
from tests.sim.crosscheck.published import PUBLISHED
from tests.sim.crosscheck.standins import GEOMETRIES, StandIn, build
from tests.sim.crosscheck.systems import MB, Row, measure

PEERS = ("lower bound", "comfy_async", "sglang_pinned", "diffusers_block_stream")


def pin(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8).pin_memory()


def ours(sim: Accelerator, name: str, *, pinned: bool) -> tuple[Row, Ledger]:
    """Stream the blocks of one model through the engine."""
    model: StandIn = build(name)
    for module in (model.embed, model.norm, model.head):
        if module is not None:
            module.to(sim.device)
    ledger = Ledger()
    layers = tuple(Layer(f"blocks.{i}", block) for i, block in enumerate(model.blocks))
    tier = MemoryTier(sim.device, PackedWeights(pin if pinned else lambda size: None))
    streamer = Streamer([Stack("blocks", layers)], Lane(sim.device), tier, ledger)
    streamer.pack()
    streamer.allocate()
    given = model.sample(sim.device)

    def run() -> None:
        streamer.install()
        model(given)

    return measure(sim, run), ledger


def main(arguments: list[str]) -> None:
    names = arguments[0].split(",") if arguments else list(GEOMETRIES)
    print(f"{'model':10} {'system':24} {'ms':>9} {'slots MB':>9}   (simulated rtx4090, second run)")
    for name in names:
        rows: dict[str, Callable[[Accelerator], tuple[Row, Ledger]]] = {
            "ours, pinned": lambda sim, name=name: ours(sim, name, pinned=True),
            "ours, pageable": lambda sim, name=name: ours(sim, name, pinned=False),
        }
        for system, run in rows.items():
            with Accelerator("rtx4090", shapes=True, cap=1 << 40) as sim:
                row, ledger = run(sim)
            print(f"{name:10} {system:24} {row.ms:9.1f} {ledger.slot_peak / MB:9.0f}")
        for system in PEERS:
            if (system, name) in PUBLISHED:
                print(f"{name:10} {system:24} {PUBLISHED[system, name].ms:9.1f}")


if __name__ == "__main__":
    main(sys.argv[1:])
