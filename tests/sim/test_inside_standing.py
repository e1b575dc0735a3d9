"""A plan is decided anew when a component is loaded for another prompt, and the node does not run again."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from .comfyui import ComfyUI
from .encodes import LOADER, Images
from .prompt_change import GB

pytestmark = [
    pytest.mark.usefixtures("_inference_mode"),
    pytest.mark.card(profile="rtx4090", shapes=True, cap=24 * GB),
]
BOTH = pytest.mark.parametrize("dynamic", [True, False], ids=["dynamic", "legacy"])
LAYERS, GIGABYTES = 22, 12
"""8.9 GB of encoder: it fits on 24 GB beside 12 GB of diffusion model, and not when others hold 8 GB."""


@pytest.fixture
def images(comfy: ComfyUI, dynamic: bool) -> Iterator[Images]:
    if dynamic and not comfy.has_dynamic:
        pytest.skip("This ComfyUI has no dynamic VRAM (it came after 0.3.75).")
    if dynamic:
        comfy.enable_dynamic()
    yield Images(comfy, LAYERS, GIGABYTES)
    comfy.mm.unload_all_models()


def place(images: Images, **widgets: Any) -> Any:
    """Run the Loader once; return the encoder's placement."""
    with images._node(LOADER):
        return images.place(**widgets).placed[0]


@contextmanager
def others_hold(comfy: ComfyUI, size: float) -> Iterator[None]:
    """Another program takes so many bytes of the card."""
    held = torch.empty(int(size), dtype=torch.uint8, device=comfy.sim.device)
    yield
    del held


def live(images: Images) -> int:
    """Return the bytes of the encoder that are on the card."""
    return int(images.encoder.loaded_size())


@BOTH
def test_memory_that_others_give_back_is_used_from_the_next_prompt_on(
    comfy: ComfyUI, images: Images, dynamic: bool
) -> None:
    with others_hold(comfy, 8 * GB):
        encoder = place(images)
        images.image(["one"], 1)
        assert str(encoder.decision.placement) == "layerwise"
        assert live(images) < 6 * GB
    images.image(["two"], 1)
    assert str(encoder.decision.placement) == "resident"
    because = (
        r"decided anew before this run, because other programs hold \d+ \w+ of the card now, not 7.45 GB"
    )
    assert re.search(because, encoder.row().why)
    images.image(["three"], 1)
    assert live(images) >= sum(p.nbytes for p in images.encoder.model.parameters())
    assert encoder.row().applied == "resident"


@BOTH
def test_what_a_person_set_is_not_decided_again(comfy: ComfyUI, images: Images, dynamic: bool) -> None:
    with others_hold(comfy, 8 * GB):
        encoder = place(images, placements={"text_encoder": "layerwise"})
        images.image(["one"], 1)
    before = encoder.decision
    for text in ("two", "three"):
        images.image([text], 1)
    assert encoder.decision is before


@BOTH
def test_fifty_prompts_with_noise_in_the_free_memory_are_decided_once(
    comfy: ComfyUI, images: Images, dynamic: bool
) -> None:
    dice = random.Random(3)
    encoder = place(images)
    before = encoder.decision
    for number in range(50):
        with others_hold(comfy, dice.uniform(0, 0.09) * comfy.sim.cap):
            images.image([f"text {number}"], 1)
        assert encoder.decision is before, number


@BOTH
def test_what_a_sampler_asks_for_counts_from_the_next_prompt_on(
    comfy: ComfyUI, images: Images, dynamic: bool
) -> None:
    """Its room is taken anyhow: the plan says so and keeps to it, and a few prompts together take no longer for it."""
    from offload_runtime.adapter.record import record_of

    took = {}
    for learns in (False, True):
        images = Images(comfy, LAYERS, GIGABYTES)
        images.demand = 6 * GB
        encoder, took[learns] = place(images), 0.0
        for number in range(5):
            assert str(encoder.decision.placement) == ("layerwise" if learns and number > 1 else "resident")
            took[learns] += (last := images.image([f"text {number}"], 1).seconds)
            if learns:
                record_of(images.diffusion.model).note_demand(images.demand)
        took[learns, "last"] = last
        comfy.mm.unload_all_models()
    assert "ComfyUI asked for 5.59 GB beside diffusion_model in its last uses" in encoder.row().why
    assert encoder.decision.budget_bytes is not None
    if not dynamic:
        assert live(images) <= encoder.decision.budget_bytes
    assert took[True] <= 1.02 * took[False]
    assert took[True, "last"] <= 1.02 * took[False, "last"]


@pytest.mark.parametrize("dynamic", [False], ids=["legacy"])
def test_what_has_to_wait_for_room_still_says_what_was_learnt(
    comfy: ComfyUI, images: Images, dynamic: bool
) -> None:
    """What is on the card stays until ComfyUI takes it; the plan follows then, for the reason that it had all along."""
    from offload_runtime.adapter.record import record_of

    images.demand = 0
    encoder = place(images)
    for text in ("zero", "one", "two"):
        images.image([text], 1)
        record_of(images.diffusion.model).note_demand(6 * GB)
    assert str(encoder.decision.placement) == "resident"
    images.demand = 6 * GB
    for text in ("three", "four", "five"):
        images.image([text], 1)
    assert str(encoder.decision.placement) == "layerwise"
    assert "ComfyUI asked for 5.59 GB beside diffusion_model in its last uses" in encoder.row().why
    assert "another size" not in encoder.row().why


class Looping(Images):
    """An encoder that runs its layers four times in one use, as one that writes tokens does."""

    def encode(self, patcher: Any = None) -> torch.Tensor:
        patcher = patcher or self.encoder
        self.comfy.mm.load_models_gpu([patcher])
        for _ in range(4):
            result: torch.Tensor = patcher.model(patcher.model.sample(self.comfy.sim.device)).cpu()
        self.end_node()
        return result


@BOTH
def test_an_encoder_that_turns_out_to_loop_is_whole_while_it_is_used(
    comfy: ComfyUI, images: Images, dynamic: bool
) -> None:
    """Its layers would be copied again and again; others take its room after each use, and it takes it back."""
    images = Looping(comfy, LAYERS, GIGABYTES)
    whole = sum(p.nbytes for p in images.encoder.model.parameters())
    with others_hold(comfy, 8 * GB):
        encoder = place(images)
        images.image(["one"], 1)
        for text in ("two", "three", "four", "five"):
            with comfy.sim.measure() as m:
                images.image([text], 1)
        assert str(encoder.decision.placement) == "offload"
        assert "it ran its layers 4 times" in encoder.decision.reason
        assert m.to_device < 2 * whole + GIGABYTES * GB, "each weight comes once"
        images.encode()
        if not dynamic:
            assert live(images) >= whole
            assert "ComfyUI loads it whole when it is used" in encoder.row().how
        assert encoder.row().applied == "resident", "all of it is there now"
    comfy.mm.unload_all_models()


@BOTH
def test_a_prompt_is_decided_for_once(
    comfy: ComfyUI, images: Images, dynamic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from offload_runtime.adapter import standing

    asked = []
    now = standing.hardware.machine_facts
    monkeypatch.setattr(standing.hardware, "machine_facts", lambda: asked.append(1) or now())
    place(images)
    del asked[:]
    for number in (1, 2, 3):
        images.image(["a", "b", "c"], 1)
        assert len(asked) == number
    images.encode()
    assert len(asked) == 3, "where no prompt runs, nothing is decided"
