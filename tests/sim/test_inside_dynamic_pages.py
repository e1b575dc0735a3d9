"""Budgets and the order of pages under dynamic VRAM, page by page: small models of one page per layer, no numbers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from .aimdo import vbar
from .comfyui import ComfyUI
from .maps import BF16, Maps
from .prompt_change import TextEncoder

pytestmark = [
    pytest.mark.usefixtures("_inference_mode"),
    pytest.mark.card(profile="rtx4090", shapes=True, cap=100 * vbar.PAGE),
]

WIDTH = 4096
"""A square map of this width is a page in bfloat16."""

NAMES = {"clip": "text_encoder", "model": "diffusion_model", "vae": "vae"}


class Component:
    """One placed model, and the most that it ever took of the card."""

    def __init__(
        self,
        comfy: ComfyUI,
        slot: str | None,
        placement: str = "",
        budget: int | None = None,
        *,
        count: int = 8,
        dtype: torch.dtype = BF16,
        always: int = 0,
        table: int = 0,
    ) -> None:
        with comfy.dynamic_off():
            ops = comfy.ops.manual_cast
            self.model = Maps(ops, count, width=WIDTH, dtype=dtype, always=always, table=table)
        self.comfy, self.peak = comfy, 0
        made = comfy.model_patcher.CoreModelPatcher
        self.patcher = made(self.model, comfy.sim.device, torch.device("cpu"))
        if slot is not None:
            self.place(slot, placement, budget)
        for block in self.model.blocks:
            block.map.register_forward_hook(self._look)

    def place(self, slot: str, placement: str, budget: int | None) -> None:
        """Put a policy on it; a budget is in pages."""
        from offload_runtime.adapter import Placements, apply_policy
        from offload_runtime.policy import Policy, Source, SourceKind

        source = Source(SourceKind.NODE, "Placement Policy, node 1")
        options = {"placement": placement} | ({"vram_budget": f"{32 * budget}MiB"} if budget else {})
        vae = SimpleNamespace(patcher=self.patcher, latent_dim=2, disable_offload=False)
        value = {"clip": TextEncoder(self.patcher), "model": self.patcher, "vae": vae}[slot]
        policy = Policy().extended(Policy.for_component(source, NAMES[slot], **options))
        out, self.placements = apply_policy(policy, {slot: value}, {}, Placements())
        self.patcher = getattr(out[slot], "patcher", out[slot])

    def _look(self, *_: object) -> None:
        buffers = sum(b.size() for b in self.comfy.mm.STREAM_AIMDO_CAST_BUFFERS.values())
        self.peak = max(self.peak, self.patcher.loaded_size() + buffers)

    def load(self) -> None:
        self.comfy.mm.load_models_gpu([self.patcher])

    def run(self, passes: int = 1) -> None:
        """Run it as it is loaded."""
        for _ in range(passes):
            self.model(torch.empty(1, WIDTH, dtype=BF16, device=self.comfy.sim.device))

    def node(self, passes: int = 1) -> None:
        """A node that uses it."""
        self.load()
        self.run(passes)
        self.comfy.end_node()

    @property
    def pages(self) -> int:
        """Its pages on the card."""
        return int(self.patcher._vbar_get().loaded_size() // vbar.PAGE)

    @property
    def how(self) -> str:
        return self.placements.report().rows[0].how


class Made(TorchDispatchMode):
    """Notes the bytes of every tensor that an operation returns inside."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.sizes.append(result.nbytes)
        return result


@pytest.fixture
def dynamic(comfy: ComfyUI) -> ComfyUI:
    if not comfy.has_dynamic:
        pytest.skip("This ComfyUI has no dynamic VRAM (it came after 0.3.75).")
    comfy.enable_dynamic()
    return comfy


def gone_first(comfy: ComfyUI, *components: Component) -> list[int]:
    """Take the card away bit by bit; return the components' numbers, the one whose last page went first first."""
    order: list[int] = []
    taken = []
    comfy.sim.cap = comfy.sim.memory.reserved
    while len(order) < len(components):
        taken.append(torch.empty(vbar.PAGE, dtype=torch.uint8, device=comfy.sim.device))
        order += [i for i, c in enumerate(components) if i not in order and not c.pages]
    return order


def test_the_budget_of_one_that_stays_outlives_the_load_of_another(dynamic: ComfyUI) -> None:
    """As a sampler that goes on after a preview: it is not loaded again."""
    stays, passing = Component(dynamic, "model", "resident", 7), Component(dynamic, "vae", "layerwise")
    stays.load()
    stays.run()
    passing.node()
    stays.run()
    assert 0 < stays.peak <= 7 * vbar.PAGE
    assert "pages go last" in stays.how


def test_a_budget_holds_while_a_component_loops(dynamic: ComfyUI) -> None:
    """It moves to the front for that, which lifts the bar."""
    encoder = Component(dynamic, "clip", "layerwise", 7)
    encoder.node(passes=3)
    assert 3 * vbar.PAGE < encoder.peak <= 7 * vbar.PAGE


@pytest.mark.parametrize(
    "made", [{}, {"always": 2}, {"dtype": torch.float32}, {"dtype": torch.float8_e4m3fn}], ids=str
)
@pytest.mark.parametrize("budget", [7, 8, 9, 11, 13])
def test_a_budget_counts_all_that_is_on_the_card(dynamic: ComfyUI, budget: int, made: dict[str, Any]) -> None:
    """What is always loaded, and the buffers of masters that are cast on their way to the model's type."""
    encoder = Component(dynamic, "clip", "layerwise", budget, **made)
    for _ in range(2):
        encoder.node()
        assert encoder.patcher.loaded_size() >= made.get("always", 0) * vbar.PAGE
        assert encoder.peak <= budget * vbar.PAGE


@pytest.mark.parametrize("budget", [9, 11, 13])
def test_a_budget_counts_the_buffers_of_patches(dynamic: ComfyUI, budget: int) -> None:
    encoder = Component(dynamic, "clip", "layerwise", budget)
    patched = encoder.patcher.clone()
    delta = torch.empty(WIDTH, WIDTH, dtype=BF16)
    assert patched.add_patches({f"blocks.{i}.map.weight": (delta,) for i in range(8)}, 1.0)
    encoder.patcher = patched
    for _ in range(2):
        encoder.node()
        assert encoder.peak <= budget * vbar.PAGE


def test_a_table_that_is_looked_up_in_memory_is_none_of_the_pages(dynamic: ComfyUI) -> None:
    encoder = Component(dynamic, "clip", "layerwise", 11, table=4)
    encoder.node()
    assert encoder.how.startswith("all 256 MB of its pages")
    assert "its token table (128 MB) is looked up in memory" in encoder.how
    with Made() as made:
        encoder.model.get_input_embeddings()(torch.zeros(1, 1, dtype=torch.long))
    assert 0 < max(made.sizes) <= 2 * WIDTH, "one row, and no copy of the table"


def test_of_two_of_a_kind_the_one_that_ran_last_goes_first(dynamic: ComfyUI) -> None:
    """Also where it was loaded again without having been detached."""
    one, two = Component(dynamic, "clip", "layerwise"), Component(dynamic, "clip", "layerwise")
    sampler = Component(dynamic, "model", "layerwise")
    one.node()
    two.node()
    loaded = next(m for m in dynamic.mm.current_loaded_models if m.model is one.patcher)
    loaded.model_use_more_vram(0)
    one.run()
    sampler.place("model", "resident", None)
    sampler.node()
    assert gone_first(dynamic, one, two, sampler) == [0, 1, 2]


def test_kinds_go_in_their_order_whoever_ran_last(dynamic: ComfyUI) -> None:
    streamed, offloaded = Component(dynamic, "clip", "layerwise"), Component(dynamic, "vae", "offload")
    sampler = Component(dynamic, "model", "resident")
    offloaded.node()
    streamed.node()
    sampler.node()
    assert gone_first(dynamic, streamed, offloaded, sampler) == [1, 0, 2]


def test_one_that_stays_goes_last_although_another_loops(dynamic: ComfyUI) -> None:
    stays, encoder = Component(dynamic, "model", "resident"), Component(dynamic, "clip", "layerwise")
    stays.node()
    encoder.node(passes=2)
    assert gone_first(dynamic, stays, encoder) == [1, 0]


def test_each_device_has_an_order_of_its_own(dynamic: ComfyUI) -> None:
    from offload_runtime.adapter.dynamic_order import PageWish, Place
    from offload_runtime.policy import Placement

    class Range:
        """A range of another card that counts how often it is moved."""

        moved = 0

        def deprioritize(self) -> None:
            self.moved += 1

        prioritize = deprioritize

        def loaded_size(self) -> int:
            return 0

    elsewhere, model, pages = torch.device("sim", 1), nn.Module(), Range()
    model.dynamic_vbars = {elsewhere: pages}
    place = Place(PageWish(Placement.LAYERWISE, True, None, False), model, elsewhere, ())
    place.loaded()
    assert pages.moved == 1
    Component(dynamic, "clip", "layerwise").node()
    assert pages.moved == 1
    place.loaded()
    assert pages.moved == 2


def test_a_second_load_without_a_detach_watches_once(dynamic: ComfyUI) -> None:
    encoder = Component(dynamic, "clip", "layerwise")
    for _ in range(2):
        encoder.load()
        loaded = next(m for m in dynamic.mm.current_loaded_models if m.model is encoder.patcher)
        loaded.model_use_more_vram(0)
        encoder.run()
        dynamic.end_node()
        assert "its pages use what is free, and go first" in encoder.how


def test_one_that_left_takes_no_part_any_more(dynamic: ComfyUI) -> None:
    """ComfyUI uses the model through another patcher then, and keeps its pages where it wants them."""
    encoder, sampler = Component(dynamic, "clip", "layerwise"), Component(dynamic, "model", "resident")
    unplaced, plain = Component(dynamic, None), encoder.patcher.parent
    encoder.node()
    assert "go first" in encoder.how
    unplaced.node()
    dynamic.mm.load_models_gpu([plain])
    encoder.run()
    assert encoder.how.startswith("not loaded now")
    sampler.node()
    assert gone_first(dynamic, encoder, sampler, unplaced) == [2, 0, 1]


@pytest.mark.parametrize("budget", [5, 7, 11])
def test_pages_of_a_table_that_is_looked_up_in_memory_from_now_on_count_or_go(
    dynamic: ComfyUI, budget: int
) -> None:
    """The encoder ran before it was placed, or a LoRA was on its table: then ComfyUI used the table on the card."""
    encoder = Component(dynamic, None, table=4)
    encoder.load()
    encoder.model.tokens(torch.zeros(1, 1, dtype=torch.long, device=dynamic.sim.device))
    encoder.run()
    dynamic.end_node()
    assert encoder.pages == 12
    encoder.place("clip", "layerwise", budget)
    for _ in range(2):
        encoder.peak = 0
        encoder.node()
        assert 0 < encoder.peak <= budget * vbar.PAGE
        assert encoder.pages <= budget


def test_pages_that_nobody_needs_are_told(dynamic: ComfyUI) -> None:
    encoder = Component(dynamic, None, table=4)
    encoder.load()
    encoder.model.tokens(torch.zeros(1, 1, dtype=torch.long, device=dynamic.sim.device))
    dynamic.end_node()
    encoder.place("clip", "layerwise", None)
    encoder.node()
    assert encoder.pages == 12
    assert "128 MB of pages that it does not need now are there, too" in encoder.how
