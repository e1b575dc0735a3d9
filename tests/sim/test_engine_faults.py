"""The engine on the simulated card: layers in layers, other threads, writes. The simulator sees every race."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from torch import nn

from offload_runtime.engine import Streamer

from . import Accelerator
from .test_engine import FORWARD, KIB, Model, packed, stream


def calling(model: Model, calls: dict[int, int]) -> Model:
    """Let layers call others in the middle of themselves."""
    for caller, called in calls.items():
        model.blocks[caller].down.register_forward_pre_hook(
            lambda _, args, other=model.blocks[called], down=model.blocks[caller].down: (
                args[0] + other(args[0][:, :64]).sum() + down.weight.sum(),
            )
        )
    return model


@pytest.mark.parametrize("pinned", [True, False], ids=["pinned", "pageable"])
@pytest.mark.parametrize("parts", [True, False], ids=["parts", "layers"])
@pytest.mark.parametrize("calls", [{0: 1}, {5: 4}, {0: 1, 1: 2, 2: 3}], ids=["next", "last", "chain"])
def test_layers_that_call_others_run_within_the_slots(
    sim: Accelerator, calls: dict[int, int], parts: bool, pinned: bool
) -> None:
    inner = [64, 512, 128, 1024, 32, 256]
    x, model = torch.randn(3, 64), calling(Model(inner), calls)
    expected = model.run(x, FORWARD)
    budget = max(map(packed, model.blocks)) if not parts else 400 * KIB
    streamer, _ = stream(sim, model, pinned=pinned, budget=budget, parts=parts)
    room = streamer.slot_bytes
    for _ in range(3):
        assert torch.equal(model.run(x.to(sim.device), FORWARD).cpu(), expected)
        assert streamer.slot_bytes == room
        streamer.install()
    assert {p.device.type for p in model.parameters()} == {"cpu"}


def free(streamer: Streamer) -> None:
    streamer.free()


def reload(streamer: Streamer) -> None:
    streamer.install()
    streamer.allocate()


@pytest.mark.parametrize("pinned", [True, False], ids=["pinned", "pageable"])
@pytest.mark.parametrize("do", [free, reload])
def test_another_thread_may_take_the_slots_while_a_layer_computes(
    sim: Accelerator, do: Callable[[Streamer], None], pinned: bool
) -> None:
    model, x = Model([256] * 6), torch.randn(3, 64)
    expected, live = model.run(x, FORWARD), sim.memory.live
    streamer, _ = stream(sim, model, pinned=pinned)

    def meddle(*_: object) -> None:
        thread = threading.Thread(target=do, args=(streamer,))
        thread.start()
        thread.join()

    for layer in FORWARD:
        hook = model.blocks[layer].down.register_forward_pre_hook(meddle)
        assert torch.equal(model.run(x.to(sim.device), FORWARD).cpu(), expected)
        hook.remove()
        assert torch.equal(model.run(x.to(sim.device), FORWARD).cpu(), expected)
    streamer.uninstall()
    streamer.free()
    assert sim.memory.live == live


@pytest.mark.parametrize("pinned", [True, False], ids=["pinned", "pageable"])
@pytest.mark.parametrize("gradients", [False, True])
def test_what_is_fetched_ahead_and_then_written_is_fetched_again(
    sim: Accelerator, gradients: bool, pinned: bool
) -> None:
    """Copies in the background run in a thread of their own, with that thread's mode of autograd."""
    model, x = Model([256] * 3), torch.randn(3, 64).to(sim.device)
    model.requires_grad_(gradients)
    streamer, _ = stream(sim, model, pinned=pinned)
    seen: set[object] = set()

    def write(*_: object) -> None:
        seen.update(p.grad_fn for p in model.blocks[0].down.parameters())
        with torch.no_grad():
            model.blocks[1].up.weight.mul_(-2)
            model.blocks[1].scale.data = model.blocks[1].scale.detach() * 3

    for _ in range(2):
        hook = model.blocks[0].down.register_forward_pre_hook(write)
        got = model.run(x, FORWARD[:3]).detach().cpu()
        hook.remove()
        streamer.uninstall()
        assert torch.equal(got, model.run(x.cpu(), FORWARD[:3]).detach())
        streamer.install()
    assert seen == {None}
    assert all(isinstance(p, nn.Parameter) and p.requires_grad is gradients for p in model.parameters())
