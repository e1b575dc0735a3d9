"""Models of other packs: tensors that only core's full load brings to the card, used where they are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from . import comfy_models
from .comfy_models import CPU
from .comfyui import ComfyUI
from .placing import BIG, MIB, end_node, ours_on, place

pytestmark = pytest.mark.usefixtures("_inference_mode")

WIDTH, TOKENS = 64, 3


class Block(nn.Module):
    """A layer of ComfyUI's operations."""

    def __init__(self, ops: Any) -> None:
        super().__init__()
        self.up, self.down = ops.Linear(WIDTH, 4 * WIDTH), ops.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Body(nn.Module):
    """A stack, and what a subclass puts around it."""

    block: type[nn.Module] = Block

    def __init__(self, ops: Any) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(self.block(ops) for _ in range(4))
        self.beside(ops)
        generator = torch.Generator().manual_seed(4)
        for parameter in self.parameters():
            parameter.requires_grad_(False)
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
        self.eval()

    def beside(self, ops: Any) -> None: ...

    def before(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def after(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.before(x)
        for block in self.blocks:
            x = block(x)
        return self.after(x)


class ScaledBlock(Block):
    """A buffer used as it is."""

    def __init__(self, ops: Any) -> None:
        super().__init__(ops)
        self.register_buffer("scale", torch.full((WIDTH,), 0.5))
        self.register_buffer("none", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.scale


class NormedBlock(Block):
    """torch's own statistics beside its weights."""

    def __init__(self, ops: Any) -> None:
        super().__init__(ops)
        self.statistics = nn.BatchNorm1d(TOKENS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.statistics(super().forward(x))


class Scaled(Body):
    block = ScaledBlock


class Normed(Body):
    block = NormedBlock


class Positioned(Body):
    """A parameter of the root, and one that two modules share."""

    def beside(self, ops: Any) -> None:
        self.pos = nn.Parameter(torch.ones(TOKENS, WIDTH))
        self.register_buffer("wide", torch.arange(TOKENS).float()[:, None].expand(TOKENS, WIDTH))
        self.inner = nn.Module()
        self.inner.pos, self.inner.part = self.pos, ops.Linear(WIDTH, WIDTH)

    def before(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner.part(x + self.pos) - self.inner.pos * self.wide


class OwnNorm(nn.Module):
    """A norm that is neither torch's nor ComfyUI's."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, (WIDTH,)) * self.weight


class NormedBehind(Body):
    def beside(self, ops: Any) -> None:
        self.norm = OwnNorm()

    def after(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x)


class Tabled(Body):
    """A table of torch's own, looked up with ids that are on the card."""

    def beside(self, ops: Any) -> None:
        self.positions = nn.Embedding(TOKENS, WIDTH)

    def before(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.positions(torch.arange(TOKENS, device=x.device))


class Remembering(Body):
    """A buffer that is written to, as caches of causal VAEs are."""

    def beside(self, ops: Any) -> None:
        self.register_buffer("last", torch.zeros(TOKENS, WIDTH), persistent=False)

    def after(self, x: torch.Tensor) -> torch.Tensor:
        y = x + self.last
        self.last.copy_(x[0])
        return y


class Probing(Body):
    """Makes what it needs where a tensor of its own is."""

    def beside(self, ops: Any) -> None:
        self.register_buffer("anchor", torch.zeros(1))

    def before(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.ones(WIDTH, device=self.anchor.device)


MOVED = [Scaled, Normed, Positioned, NormedBehind, Tabled, Remembering, Probing]

GIVEN = torch.randn(TOKENS, WIDTH, generator=torch.Generator().manual_seed(5)).view(1, TOKENS, WIDTH)


class Two:
    """Two models with the same weights: core runs one, we the other."""

    def __init__(self, comfy: ComfyUI, kind: type[Body]) -> None:
        self.comfy = comfy
        comfy.sim.cap = BIG
        self.alone, self.model = (kind(comfy.ops.manual_cast) for _ in range(2))
        self.expected = [self.run(self.patcher(self.alone)) for _ in range(3)]
        comfy.mm.unload_all_models()

    def patcher(self, model: nn.Module) -> Any:
        return self.comfy.model_patcher.ModelPatcher(model, self.comfy.sim.device, torch.device("cpu"))

    def run(self, patcher: Any) -> torch.Tensor:
        self.comfy.mm.load_models_gpu([patcher])
        result = patcher.model(GIVEN.to(self.comfy.sim.device)).cpu()
        end_node(self.comfy)
        return result


def tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers())}


@pytest.mark.parametrize("kind", MOVED)
def test_what_only_a_full_load_moves_is_moved(comfy: ComfyUI, kind: type[Body]) -> None:
    two = Two(comfy, kind)
    before = {name: (id(tensor), tensor.clone()) for name, tensor in tensors(two.model).items()}
    placed = place("model", two.patcher(two.model))
    for expected in two.expected:
        assert torch.equal(two.run(placed.value), expected)
        assert placed.row.applied == "layerwise"
    assert placed.row.layer_runs == 12
    comfy.mm.unload_all_models()
    after = tensors(two.model)
    assert {name: id(tensor) for name, tensor in after.items()} == {n: i for n, (i, _) in before.items()}
    assert {tensor.device.type for tensor in after.values()} == {"cpu"}
    changed = {name for name, tensor in after.items() if not torch.equal(tensor, before[name][1])}
    assert changed == ({"last"} if kind is Remembering else set())
    assert not ours_on(two.model)


class Spacious(Body):
    """Has a buffer as large as a layer that is used where it is."""

    def beside(self, ops: Any) -> None:
        self.register_buffer("waves", torch.ones(512, 64))

    def after(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.waves[:TOKENS]


def test_what_somebody_puts_in_place_of_one_stays(comfy: ComfyUI) -> None:
    """A pack that sets another scale while the model is loaded."""
    two = Two(comfy, Scaled)
    placed = place("model", two.patcher(two.model))
    two.run(placed.value)
    block = two.model.blocks[1]
    block.scale = theirs = block.scale * 2
    comfy.mm.unload_all_models()
    assert torch.equal(block.scale.cpu(), theirs.cpu())
    assert {other.scale.device.type for other in two.model.blocks if other is not block} == {"cpu"}


def test_a_budget_counts_what_is_loose(comfy: ComfyUI) -> None:
    two = Two(comfy, Spacious)
    live = comfy.sim.memory.live
    placed = place("model", two.patcher(two.model), vram_budget="550KB")
    for expected in two.expected:
        assert torch.equal(two.run(placed.value), expected)
    assert placed.row.layer_runs > 0
    assert comfy.sim.memory.live - live <= 550_000
    assert placed.patcher.loaded_size() <= 550_000


def test_no_room_for_what_is_loose_leaves_the_model_as_it_was(comfy: ComfyUI) -> None:
    """Another program has taken the memory after ComfyUI made room."""
    two = Two(comfy, Spacious)
    placed = place("model", two.patcher(two.model), vram_budget="550KB")
    cap = comfy.sim.cap

    def fill(*_: object) -> None:
        assert sum(tensor.device == comfy.sim.device for tensor in tensors(two.model).values()) == 4, (
            "a layer"
        )
        comfy.sim.cap = comfy.sim.memory.live + two.model.waves.nbytes // 2

    placed.patcher.add_callback_with_key(comfy.model_patcher.CallbacksMP.ON_LOAD, "another program", fill)
    live = comfy.sim.memory.live
    with pytest.raises(torch.OutOfMemoryError):
        two.run(placed.value)
    comfy.mm.unload_all_models()
    assert not ours_on(two.model)
    assert {tensor.device.type for tensor in tensors(two.model).values()} == {"cpu"}
    assert comfy.sim.memory.live == live, comfy.sim.memory.report()
    placed.patcher.remove_callbacks_with_key(comfy.model_patcher.CallbacksMP.ON_LOAD, "another program")
    comfy.sim.cap = cap
    assert torch.equal(two.run(placed.value), two.expected[0])
    assert placed.row.applied == "layerwise"


class Peeking(Body):
    """Takes a weight of ComfyUI's operation past the operation."""

    def beside(self, ops: Any) -> None:
        self.head = ops.Linear(WIDTH, WIDTH)

    def after(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.head.weight)


class Tying(Body):
    """Takes a weight of a layer past the layer."""

    def after(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.blocks[1].up.weight)


class Asking(Body):
    """Computes where its first weight is."""

    def before(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(next(self.parameters()).device)


FAILING = {Peeking: "same device", Tying: "same device", Asking: "a layer's inputs are on cpu"}


@pytest.mark.parametrize("kind", FAILING)
def test_a_use_that_fails_for_a_reason_of_placement_is_made_again_as_core_would(
    comfy: ComfyUI, kind: type[Body], caplog: pytest.LogCaptureFixture
) -> None:
    two = Two(comfy, kind)
    placed = place("model", two.patcher(two.model))
    with caplog.at_level("WARNING", "root"):
        for expected in two.expected:
            assert torch.equal(two.run(placed.value), expected)
    assert sum("is left to ComfyUI" in record.message for record in caplog.records) == 1
    assert placed.row.applied == "comfyui"
    assert FAILING[kind] in placed.row.how
    assert {tensor.device.type for tensor in tensors(two.model).values()} == {"sim"}
    assert not ours_on(two.model)
    assert torch.equal(two.run(placed.value.clone()), two.expected[0])
    again = place("model", two.patcher(two.model))
    assert again.row.applied == "comfyui", "it is not tried a second time"
    assert FAILING[kind] in again.row.why
    assert torch.equal(two.run(again.value), two.expected[0])
    comfy.mm.unload_all_models()
    assert {tensor.device.type for tensor in tensors(two.model).values()} == {"cpu"}


def test_other_errors_are_nobodys_reason_to_load_anew(comfy: ComfyUI) -> None:
    two = Two(comfy, Body)
    placed = place("model", two.patcher(two.model))
    calls = []

    def fail(*args: object) -> None:
        calls.append(args)
        raise RuntimeError("half-way")

    handle = two.model.blocks[2].up.register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="half-way"):
        two.run(placed.value)
    handle.remove()
    assert len(calls) == 1
    assert torch.equal(two.run(placed.value), two.expected[0])
    assert placed.row.applied == "layerwise"


class Recurrent(Body):
    """torch's recurrent modules keep their weights in a list of their own."""

    def beside(self, ops: Any) -> None:
        self.memory = nn.LSTM(WIDTH, WIDTH, batch_first=True)

    def after(self, x: torch.Tensor) -> torch.Tensor:
        return self.memory(x)[0]


class Hooked(Body):
    """A hook makes a weight whenever the module is called."""

    def beside(self, ops: Any) -> None:
        self.conv = nn.utils.weight_norm(nn.Conv1d(TOKENS, TOKENS, 1))

    def after(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x)


class Listing(Body):
    """Names its weights in a list."""

    def beside(self, ops: Any) -> None:
        self.norm = OwnNorm()
        self.scales = [self.norm.weight]

    def after(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x) + self.scales[0]


class Heavy(Body):
    """More of it is loose than may stay on the card."""

    def beside(self, ops: Any) -> None:
        self.register_buffer("waves", torch.ones(65 << 14, 64))

    def after(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.waves[:TOKENS]


LEFT = {
    Recurrent: "`memory` is moved in a way of its own",
    Hooked: "`conv` computes its weights out of others",
    Listing: "refers to weights from outside",
    Heavy: "too much of it only moves with the whole model, such as `waves`",
}


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("kind", LEFT)
def test_what_cannot_be_moved_for_it_leaves_the_model_to_core(comfy: ComfyUI, kind: type[Body]) -> None:
    two = Two(comfy, kind)
    placed = place("model", two.patcher(two.model))
    assert placed.row.applied == "comfyui"
    assert LEFT[kind] in placed.row.why
    assert torch.equal(two.run(placed.value), two.expected[0])


def scaled(clip: Any) -> Any:
    """Let every layer of a T5 have a buffer of its own, as a pack's layer class does."""
    for layer in clip.patcher.model.t5base.transformer.encoder.block:
        kind = type(layer)

        def forward(self: nn.Module, *args: Any, kind: Any = kind, **kwargs: Any) -> Any:
            x, *rest = kind.forward(self, *args, **kwargs)
            return (x * self.scale, *rest)

        layer.__class__ = type("ScaledBlock", (kind,), {"forward": forward})
        layer.register_buffer("scale", torch.full((128,), 0.5))
    return clip


def test_with_nothing_asked_an_encoder_that_core_runs_on_the_card_runs(comfy: ComfyUI) -> None:
    """An encoder and a larger model that fill the card in turn: `auto` streams the encoder."""
    from offload_runtime.adapter import Placements, apply_policy
    from offload_runtime.policy import Policy, Source, SourceKind

    comfy.sim.cap = int(comfy.mm.minimum_inference_memory()) + 400 * MIB
    clip = scaled(comfy_models.t5_base(comfy))
    larger = nn.Sequential(*(comfy.ops.manual_cast.Linear(8192, 4096, dtype=torch.float16) for _ in range(6)))
    model = comfy.model_patcher.ModelPatcher(larger, comfy.sim.device, CPU)
    expected = comfy_models.encode(clip, "fox")[0]
    comfy.mm.load_models_gpu([model])
    comfy.mm.unload_all_models()
    policy = Policy.from_widgets(Source(SourceKind.NODE, "Placement Policy, node 1"), placements={})
    out, placements = apply_policy(policy, {"model": model, "clip": clip}, {}, Placements())
    for _ in range(2):
        comfy.mm.load_models_gpu([out["model"]])  # as a sampler does between two prompts
        assert torch.equal(comfy_models.encode(out["clip"], "fox")[0], expected)
        assert placements.placed[1].row().applied == "layerwise"
        end_node(comfy)
