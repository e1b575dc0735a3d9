"""Weights that somebody writes, layers that call each other, threads that take the slots, and interrupts anywhere."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from test_streamer import Block, EverythingTier, Model, stack_of
from torch import nn

import offload_runtime.engine as engine
from offload_runtime.engine import Lane, Layer, Ledger, Stack, Streamer, Trace


class AheadTier(EverythingTier):
    """Copies ahead."""

    overlaps = True


def installed(model: Model, tier: EverythingTier | None = None, budget: int | None = None) -> Streamer:
    streamer = Streamer([stack_of(model)], Lane(torch.device("cpu")), tier or AheadTier(), Ledger(), budget)
    streamer.install()
    streamer.allocate()
    return streamer


def made(blocks: int, *, in_inference_mode: bool = False) -> Model:
    torch.manual_seed(0)
    with torch.inference_mode(in_inference_mode):
        return Model(Block() for _ in range(blocks))


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(2, 8)


# Writes -----------------------------------------------------------------------------------------------


def write_in_place(linear: nn.Linear) -> None:
    linear.weight.mul_(-2)


def write_data(linear: nn.Linear) -> None:
    linear.weight.data = linear.weight.detach() * -2


def replace(linear: nn.Linear) -> None:
    linear.weight = nn.Parameter(linear.weight.detach() * -2, requires_grad=False)


@pytest.mark.parametrize("during", [False, True], ids=["between", "during"])
@pytest.mark.parametrize(
    ("write", "mode"),
    [(write_in_place, False), (write_in_place, True), (write_data, False), (replace, False)],
    ids=["in place", "in place in inference mode", "data", "another parameter"],
)
def test_weights_that_are_written_without_a_new_load_are_seen(
    write: Callable[[nn.Linear], None], mode: bool, during: bool, x: torch.Tensor
) -> None:
    """All of a small model stays in the slots. ComfyUI makes and runs models in inference mode."""
    model = made(2, in_inference_mode=mode)
    with torch.inference_mode(mode), torch.no_grad():
        streamer = installed(model)
        before = model(x)
        for _ in range(2):
            if during:
                hook = model.blocks[0].register_forward_pre_hook(lambda *_: write(model.blocks[1].linear))
                got = model(x)
                hook.remove()
            else:
                for block in model.blocks:
                    write(block.linear)
                got = model(x)
            streamer.uninstall()
            assert not torch.equal(got, before)
            assert torch.equal(got, model(x))
            before = got
            streamer.install()
            model(x)


def test_the_parameters_of_a_model_made_in_inference_mode_stay_the_same_objects(x: torch.Tensor) -> None:
    model = made(2, in_inference_mode=True)
    weight = model.blocks[0].linear.weight
    weight.note = "kept"
    before = [(id(p), p.data_ptr(), type(p), p.requires_grad) for p in model.parameters()]
    with torch.inference_mode():
        expected = model(x)
        streamer = installed(model)
        assert torch.equal(model(x), expected)
        streamer.uninstall()
        assert torch.equal(model(x), expected)
    assert [(id(p), p.data_ptr(), type(p), p.requires_grad) for p in model.parameters()] == before
    assert weight.note == "kept"


def test_no_graph_grows_on_the_slots_of_a_model_with_gradients_on(x: torch.Tensor) -> None:
    model = made(3).requires_grad_()
    streamer = installed(model)
    seen: list[tuple[bool, object]] = []
    model.blocks[1].linear.register_forward_pre_hook(
        lambda linear, _: seen.append((linear.weight.requires_grad, linear.weight.grad_fn))
    )
    for _ in range(3):
        model(x)
    assert set(seen) == {(False, None)}
    assert all(p.requires_grad for p in model.parameters())
    streamer.uninstall()


# Layers in layers -------------------------------------------------------------------------------------


class Caller(Block):
    """Runs its neighbours in the middle of itself, with a weight in hand."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[nn.Module] = []
        self.depth = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.linear.weight
        self.seen.append(weight.data_ptr())
        x = nn.functional.linear(x, weight, self.linear.bias)
        if self.depth < 2:
            self.depth += 1
            for other in self.calls:
                x = other(x)
            self.depth -= 1
        return nn.functional.linear(x, weight) * self.scale


def callers(calls: dict[int, list[int]]) -> Model:
    torch.manual_seed(0)
    model = Model(Caller() for _ in range(4))
    for caller, called in calls.items():
        # Not registered again: a layer's weights are its own.
        object.__setattr__(model.blocks[caller], "calls", [model.blocks[other] for other in called])
    return model


CALLS = {
    "neighbour": {0: [1]},
    "both neighbours": {1: [0, 2]},
    "chain": {0: [1], 1: [2], 2: [3]},
    "itself": {1: [1]},
    "each other": {1: [2], 2: [1]},
    "round and round": {1: [2], 2: [3], 3: [1]},
}


@pytest.mark.parametrize("tier", [EverythingTier, AheadTier], ids=["one slot", "two slots"])
@pytest.mark.parametrize("calls", CALLS.values(), ids=CALLS)
def test_layers_that_call_each_other_run_with_their_own_weights(
    calls: dict[int, list[int]], tier: type[EverythingTier], x: torch.Tensor
) -> None:
    model = callers(calls)
    expected = model(x)
    before = [id(p) for p in model.parameters()]
    streamer = installed(model, tier())
    room = streamer.slot_bytes
    for _ in range(3):
        assert torch.equal(model(x), expected)
        assert [id(p) for p in model.parameters()] == before
    assert streamer.slot_bytes == room
    streamer.install()
    assert torch.equal(model(x), expected)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_layer_whose_neighbour_fails_goes_on_with_its_own_weights(
    error: type[BaseException], x: torch.Tensor
) -> None:
    model = made(3)
    outer, inner = model.blocks[0], model.blocks[1]
    original, failing = outer.forward, True

    def forward(x: torch.Tensor) -> torch.Tensor:
        if failing:
            with pytest.raises(error, match="half-way"):
                inner(x, shift="half-way")  # type: ignore[arg-type]
        return original(x)

    def fail(block: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        if "shift" in kwargs:
            raise error(kwargs["shift"])

    inner.linear.register_forward_pre_hook(
        lambda *_: fail(inner, (), {"shift": "half-way"} if failing else {})
    )
    expected = original(x)
    outer.forward = forward  # type: ignore[method-assign]
    streamer = installed(model, EverythingTier())
    assert torch.equal(outer(x), expected)
    failing = False
    assert torch.equal(model(x), model(x))
    streamer.uninstall()


# Threads ----------------------------------------------------------------------------------------------


def free(streamer: Streamer) -> None:
    streamer.free()


def unload(streamer: Streamer) -> None:
    streamer.uninstall()
    streamer.free()


def load(streamer: Streamer) -> None:
    streamer.install()
    streamer.adjust()
    streamer.allocate()


class Meddler(AheadTier):
    """Lets another thread do something in the middle of planning."""

    def __init__(self, do: Callable[[], None]) -> None:
        super().__init__()
        self.do, self.asked, self.meddles = do, 0, False
        self.threads: list[threading.Thread] = []

    def holds(self, tensor: torch.Tensor) -> bool:
        self.asked += 1
        if self.meddles and threading.current_thread() is threading.main_thread() and self.asked % 7 == 0:
            thread = threading.Thread(target=self.do)
            self.threads.append(thread)
            thread.start()
            thread.join(0.01)  # it may have to wait
        return True


@pytest.mark.parametrize("do", [free, unload, load])
def test_slots_may_be_taken_by_another_thread_while_layers_are_planned(
    do: Callable[[Streamer], None], x: torch.Tensor
) -> None:
    model = made(4)
    expected = model(x)
    before = [id(p) for p in model.parameters()]
    tier = Meddler(lambda: do(streamer))
    streamer = installed(model, tier)
    tier.meddles = True
    for _ in range(3):
        assert torch.equal(model(x), expected)
        streamer.install()
    tier.meddles = False
    for thread in tier.threads:
        thread.join()
    assert [id(p) for p in model.parameters()] == before
    unload(streamer)
    assert streamer.slot_bytes == 0
    assert not any("forward" in block.__dict__ for block in model.blocks)


@pytest.mark.parametrize("do", [free, unload, load])
def test_slots_may_be_taken_by_another_thread_while_a_layer_computes(
    do: Callable[[Streamer], None], x: torch.Tensor
) -> None:
    model = made(4)
    expected = model(x)
    streamer = installed(model)

    def meddle(*_: object) -> None:
        thread = threading.Thread(target=do, args=(streamer,))
        thread.start()
        thread.join()

    hook = model.blocks[1].linear.register_forward_pre_hook(meddle)
    assert torch.equal(model(x), expected)
    hook.remove()
    streamer.install()
    assert torch.equal(model(x), expected)


def test_a_layer_that_was_unwrapped_while_it_was_being_called_takes_no_slots(x: torch.Tensor) -> None:
    """Another thread has unloaded the model between the look-up of `forward` and the call."""
    model = made(2)
    expected = model.blocks[0](x)
    streamer = installed(model)
    forward = model.blocks[0].forward
    unload(streamer)
    assert torch.equal(forward(x), expected)
    assert streamer.slot_bytes == 0


def test_two_threads_may_run_one_model(x: torch.Tensor) -> None:
    model = made(4)
    expected = model(x)
    streamer = installed(model)
    wrong: list[int] = []

    def use() -> None:
        wrong.extend(i for i in range(20) if not torch.equal(model(x), expected))

    threads = [threading.Thread(target=use) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    streamer.uninstall()


# Interrupts -------------------------------------------------------------------------------------------

ENGINE = str(Path(engine.__file__).parent)


def interrupt(number: int, *, opcodes: bool) -> Callable[..., Any]:
    """Raise at one step of the engine's code, as a signal handler would: at a line, or at an instruction of `run`."""
    steps = itertools.count()

    def step(frame: FrameType, event: str, _: object) -> Any:
        if event == ("opcode" if opcodes else "line") and next(steps) == number:
            sys.settrace(None)
            raise KeyboardInterrupt
        return step

    def call(frame: FrameType, event: str, _: object) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(ENGINE) or (
            opcodes and code.co_name not in ("run", "_run", "_leave")
        ):
            return None
        frame.f_trace_opcodes = opcodes
        return step

    return call


def interrupted(model: Model, x: torch.Tensor, *, opcodes: bool, every: int) -> Iterator[bool]:
    """Interrupt one run after another, each a little later, until one is through."""
    for number in itertools.count(0, every):
        sys.settrace(interrupt(number, opcodes=opcodes))
        try:
            model(x)
        except KeyboardInterrupt:
            yield True
        else:
            return
        finally:
            sys.settrace(None)


@pytest.mark.parametrize(("opcodes", "every"), [(False, 5), (True, 2)], ids=["line", "instruction"])
@pytest.mark.parametrize("calls", [{}, {0: [1]}], ids=["one by one", "neighbour"])
def test_an_interrupt_at_any_place_leaves_the_masters_and_the_next_run_is_right(
    calls: dict[int, list[int]], *, opcodes: bool, every: int, x: torch.Tensor
) -> None:
    model = callers(calls)
    expected = model(x)
    before = {name: id(p) for name, p in model.named_parameters()}
    streamer = installed(model, EverythingTier() if calls else AheadTier())
    masters = {block.linear.weight.data_ptr() for block in model.blocks}
    count = 0
    for _ in interrupted(model, x, opcodes=opcodes, every=every):
        count += 1
        assert {name: id(p) for name, p in model.named_parameters()} == before
        for block in model.blocks:
            block.depth = 0
            block.seen.clear()
        assert torch.equal(model(x), expected)
        assert all(block.seen and masters.isdisjoint(block.seen) for block in model.blocks), (
            "out of the slots"
        )
    assert count > 50
    streamer.install()
    assert torch.equal(model(x), expected)


# Traces -----------------------------------------------------------------------------------------------


def test_streamers_that_number_layers_differently_share_a_trace(x: torch.Tensor) -> None:
    """One clone has compiled blocks, which are left to ComfyUI."""
    model, trace = made(6), Trace()
    expected = model(x)
    whole = stack_of(model)
    compiled = [
        Layer(f"{layer.name}._orig_mod", layer.module) if i < 3 else layer
        for i, layer in enumerate(whole.layers)
    ]
    ledger = Ledger()
    streamers = [
        Streamer([stack], Lane(torch.device("cpu")), AheadTier(), counts, None, trace)
        for stack, counts in ((whole, Ledger()), (Stack("blocks", tuple(compiled)), ledger))
    ]
    for streamer in (*streamers, *streamers[::-1]):
        streamer.install()
        streamer.allocate()
        assert torch.equal(model(x), expected)
        streamer.uninstall()
        streamer.free()
    moved = ledger.moved["memory"]
    assert moved == 2 * sum(p.nbytes for block in list(model.blocks)[3:] for p in block.parameters())
