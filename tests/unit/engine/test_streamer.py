"""The streamer puts weights into a slot for the duration of a layer's forward, and the same Parameters back."""

from __future__ import annotations

import copy
import gc
import inspect
import weakref
from collections.abc import Callable, Iterable

import pytest
import torch
from torch import nn

from offload_runtime.engine import Lane, Layer, Ledger, Stack, Streamer


class EverythingTier:
    """Every weight is copied, as from the host to a device."""

    name = "memory"
    overlaps = False

    def __init__(self) -> None:
        self.expected: list[int] = []

    def begin_use(self, live: Iterable[torch.Tensor]) -> None:
        """Nothing to do."""

    def holds(self, tensor: torch.Tensor) -> bool:
        return True

    def pack(self, masters: Iterable[torch.Tensor]) -> None:
        pass

    def packed(self, masters: Iterable[torch.Tensor]) -> None:
        return None

    def blocks_the_host(self, block: torch.Tensor | None) -> bool:
        return False

    def expect(self, tensors: Iterable[torch.Tensor]) -> None:
        self.expected.extend(id(tensor) for tensor in tensors)

    def finish(self, tensors: Iterable[torch.Tensor]) -> None:
        pass


class Block(nn.Module):
    """A layer with a leaf, a parameter of its own, and a place to look at what it runs with."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.scale = nn.Parameter(torch.randn(width))
        self.seen: list[int] = []

    def forward(self, x: torch.Tensor, *, shift: float = 0.0) -> torch.Tensor:
        """Scale a linear map."""
        self.seen.append(self.linear.weight.data_ptr())
        return self.linear(x) * self.scale + shift


class Model(nn.Module):
    def __init__(self, blocks: Iterable[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def stack_of(model: Model) -> Stack:
    return Stack("blocks", tuple(Layer(f"blocks.{i}", block) for i, block in enumerate(model.blocks)))


def streamer_for(model: Model, ledger: Ledger | None = None, tier: EverythingTier | None = None) -> Streamer:
    return Streamer(
        [stack_of(model)], Lane(torch.device("cpu")), tier or EverythingTier(), ledger or Ledger()
    )


@pytest.fixture
def model() -> Model:
    torch.manual_seed(0)
    return Model(Block() for _ in range(3))


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(2, 8)


def test_output_is_equal_bit_for_bit_and_weights_ran_from_the_slot(model: Model, x: torch.Tensor) -> None:
    expected = model(x)
    hosts = {block.linear.weight.data_ptr() for block in model.blocks}
    for block in model.blocks:
        block.seen.clear()
    streamer = streamer_for(model)
    streamer.install()
    assert torch.equal(model(x), expected)
    seen = {address for block in model.blocks for address in block.seen}
    assert len(seen) == 1, "layers of one layout share one place in the slot"
    assert not seen & hosts


def test_the_same_parameter_objects_are_back_after_a_run(model: Model, x: torch.Tensor) -> None:
    before = {name: id(p) for name, p in model.named_parameters()}
    streamer = streamer_for(model)
    streamer.install()
    model(x)
    assert {name: id(p) for name, p in model.named_parameters()} == before


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_layer_that_fails_leaves_its_own_weights_and_the_next_run_is_right(
    model: Model, x: torch.Tensor, error: type[BaseException]
) -> None:
    """ComfyUI's interrupt is a BaseException: no forward hook would see it."""
    expected = model(x)
    before = {name: id(p) for name, p in model.named_parameters()}
    original, failing = Block.forward, model.blocks[1]

    def forward(self: Block, x: torch.Tensor) -> torch.Tensor:
        if self is failing:
            raise error("half-way")
        return original(self, x)

    streamer = streamer_for(model)
    streamer.install()
    Block.forward = forward  # type: ignore[method-assign]
    try:
        with pytest.raises(error, match="half-way"):
            model(x)
    finally:
        Block.forward = original  # type: ignore[method-assign]
    assert {name: id(p) for name, p in model.named_parameters()} == before
    assert torch.equal(model(x), expected)


def test_out_of_memory_for_the_slot_changes_nothing(
    model: Model, x: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = model(x)
    before = {name: id(p) for name, p in model.named_parameters()}
    streamer = streamer_for(model)
    streamer.install()

    def refuse(*args: object, **kwargs: object) -> None:
        raise torch.OutOfMemoryError("no room")

    with monkeypatch.context() as patch:
        patch.setattr("offload_runtime.engine.streamer.Slots", refuse)
        with pytest.raises(torch.OutOfMemoryError):
            model(x)
    assert {name: id(p) for name, p in model.named_parameters()} == before
    assert torch.equal(model(x), expected)


def test_a_replaced_parameter_is_seen_at_the_next_run(model: Model, x: torch.Tensor) -> None:
    """A LoRA that ComfyUI merges replaces the Parameter: nothing packed may go stale."""
    streamer = streamer_for(model)
    streamer.install()
    before = model(x)
    model.blocks[0].linear.weight = nn.Parameter(torch.randn(8, 8), requires_grad=False)
    changed = model(x)
    streamer.uninstall()
    assert not torch.equal(changed, before)
    assert torch.equal(changed, model(x))


def test_uninstall_leaves_nothing(model: Model, x: torch.Tensor) -> None:
    attributes = {name: dict(module.__dict__) for name, module in model.named_modules()}
    ledger = Ledger()
    streamer = streamer_for(model, ledger)
    streamer.install()
    streamer.allocate()
    assert ledger.slot_bytes == streamer.slot_bytes > 0
    streamer.uninstall()
    streamer.free()
    assert {name: dict(module.__dict__) for name, module in model.named_modules()} == attributes
    assert ledger.slot_bytes == streamer.slot_bytes == 0


def test_a_forward_that_somebody_else_set_is_called_and_given_back(model: Model, x: torch.Tensor) -> None:
    """Bypass LoRAs replace `forward` on the instance before us."""
    block = model.blocks[0]
    theirs = lambda x: x + 1  # noqa: E731
    block.forward = theirs  # type: ignore[method-assign]
    expected = model(x)
    streamer = streamer_for(model)
    streamer.install()
    assert torch.equal(model(x), expected)
    streamer.uninstall()
    assert block.__dict__["forward"] is theirs


def test_the_last_installed_streamer_runs_the_layers_and_the_first_cannot_undo_it(model: Model) -> None:
    """A clone that is collected late ejects after its sibling was loaded."""
    first, second = streamer_for(model), streamer_for(model)
    first.install()
    second.install()
    assert (first.is_installed, second.is_installed) == (False, True)
    first.uninstall()
    assert second.is_installed
    second.uninstall()
    assert all("forward" not in block.__dict__ for block in model.blocks)


def test_a_deep_copy_of_a_wrapped_model_runs_on_its_own(model: Model, x: torch.Tensor) -> None:
    """ComfyUI copies a model like this for another GPU."""
    streamer = streamer_for(model)
    streamer.install()
    copied = copy.deepcopy(model)
    streamer.uninstall()
    with torch.no_grad():
        copied.blocks[0].scale.add_(1)
    expected = copied(x)
    assert not torch.equal(expected, model(x))
    for block in copied.blocks:
        block.__dict__.pop("forward")
    assert torch.equal(copied(x), expected)


def test_a_streamer_that_is_gone_leaves_a_model_that_works(model: Model, x: torch.Tensor) -> None:
    expected = model(x)
    streamer = streamer_for(model)
    streamer.install()
    del streamer
    assert torch.equal(model(x), expected)


def test_no_reference_cycle_keeps_the_model_or_the_streamer(model: Model) -> None:
    streamer = streamer_for(model)
    streamer.install()
    streamer.allocate()
    references = weakref.ref(streamer), weakref.ref(model.blocks[0])
    gc.disable()
    try:
        del streamer
        assert references[0]() is None
        model.blocks = nn.ModuleList()
        assert references[1]() is None
    finally:
        gc.enable()


def test_a_tied_weight_is_copied_once(x: torch.Tensor) -> None:
    block = Block()
    block.twin = nn.Linear(8, 8, bias=False)
    block.twin.weight = block.linear.weight
    model = Model([block, Block()])
    ledger = Ledger()
    streamer = streamer_for(model, ledger)
    streamer.install()
    model(x)
    weights = [p for b in model.blocks for p in b.parameters()]  # parameters() names a tied one once
    assert ledger.moved["memory"] == sum(p.nbytes for p in weights)


def test_layers_of_unequal_size_and_layout_share_the_slot() -> None:
    torch.manual_seed(0)
    model = Model([Block(4), Block(16), Block(4)])
    model.blocks[1].linear = nn.Linear(4, 16).requires_grad_(False)
    model.blocks[2].linear = nn.Linear(16, 4).requires_grad_(False)
    model.blocks[2].linear.weight = nn.Parameter(torch.randn(16, 4).t(), requires_grad=False)
    x = torch.randn(3, 4)
    expected = model(x)
    streamer = streamer_for(model)
    streamer.install()
    streamer.allocate()
    room = streamer.slot_bytes
    assert torch.equal(model(x), expected)
    assert streamer.slot_bytes == room, "the slot was large enough from the start"


def test_the_next_layer_is_announced_while_the_current_one_runs(model: Model, x: torch.Tensor) -> None:
    tier = EverythingTier()
    streamer = streamer_for(model, tier=tier)
    streamer.install()
    model(x)
    assert tier.expected == [id(p) for block in list(model.blocks)[1:] for p in block.parameters()]


def test_signature_and_documentation_survive(model: Model) -> None:
    block = model.blocks[0]
    signature = inspect.signature(block.forward)
    streamer = streamer_for(model)
    streamer.install()
    assert inspect.signature(block.forward) == signature
    assert block.forward.__doc__ == "Scale a linear map."


def test_runs_inside_and_outside_inference_mode(model: Model, x: torch.Tensor) -> None:
    streamer = streamer_for(model)
    streamer.install()
    with torch.inference_mode():
        inside = model(x).clone()
    assert torch.equal(model(x), inside)


class SomeTier(EverythingTier):
    """Copies ahead, and leaves alone what is in `resident`, as weights that ComfyUI has moved to the device."""

    overlaps = True

    def __init__(self) -> None:
        super().__init__()
        self.resident: set[int] = set()

    def holds(self, tensor: torch.Tensor) -> bool:
        return id(tensor) not in self.resident


def test_a_layer_that_becomes_resident_in_mid_use_leaves_no_stale_weights_behind(x: torch.Tensor) -> None:
    """What was to give way for it has given way: its memory goes to the next one."""
    torch.manual_seed(0)
    model, order = Model(Block() for _ in range(4)), (0, 1, 2, 3, 0)

    def run(on_layer: Callable[[int], None]) -> torch.Tensor:
        out = x
        for layer in order:
            on_layer(layer)
            out = model.blocks[layer](out)
        return out

    expected, tier = run(lambda layer: None), SomeTier()
    streamer = streamer_for(model, tier=tier)
    streamer.install()
    streamer.allocate()

    def move(layer: int) -> None:
        if layer == 1:
            tier.resident = {id(p) for p in model.blocks[2].parameters()}

    assert torch.equal(run(move), expected)


def test_a_streamer_that_was_replaced_takes_only_its_own_wrappers_off() -> None:
    """A sibling clone has been loaded since."""
    model, x = Model(Block() for _ in range(3)), torch.randn(2, 8)
    ledger = Ledger()
    first = Streamer([stack_of(model)], Lane(torch.device("cpu")), EverythingTier(), Ledger())
    second = Streamer([stack_of(model)], Lane(torch.device("cpu")), EverythingTier(), ledger)
    first.install()
    second.install()
    first.uninstall()
    model(x)
    assert ledger.layer_runs == 3
    second.uninstall()
    model(x)
    assert ledger.layer_runs == 3
