"""A new prompt while the diffusion model is loaded, and what residency brings, in real sizes (no numbers)."""

from __future__ import annotations

import pytest
import torch

from .comfyui import ComfyUI
from .placing import PlacedObject, place
from .prompt_change import GB, Diffusion, Workflow, encoder_of_maps

pytestmark = pytest.mark.usefixtures("_inference_mode")


@pytest.mark.card(profile="rtx4090", shapes=True, cap=64 * GB)
def test_a_new_prompt_evicts_nothing_of_the_diffusion_model(comfy: ComfyUI) -> None:
    workflow = Workflow(comfy)
    workflow.prompt()
    resident = workflow.prompt()
    comfy.mm.unload_all_models()
    placed = place("model", workflow.encoder)
    for card in (24, 16, 12):
        comfy.sim.cap = card * GB
        workflow.sample()
        before = workflow.diffusion.loaded_size()
        for _ in range(3):
            with comfy.sim.measure() as m:
                workflow.encode(placed.patcher)
                back = m.to_host
            assert workflow.diffusion.loaded_size() == before, "the encode evicts nothing"
            assert back < 5_000_000, "token ids go to their table and the result to the host, but no weight"
            assert comfy.sim.memory.reserved <= comfy.sim.cap
            workflow.sample()
        assert workflow.diffusion.loaded_size() == before
        overhead = (workflow.prompt(placed.patcher) - resident) / 1000
        print(f"{card} GB card: {overhead:.3f} s more than resident, {before / GB:.1f} GB stay")  # noqa: T201
        assert overhead <= 0.40
        comfy.mm.unload_all_models()


@pytest.mark.card(profile="rtx4090", shapes=True, cap=64 * GB)
def test_half_of_the_bytes_resident_takes_half_of_the_time(comfy: ComfyUI) -> None:
    workflow = Workflow(comfy)
    whole = sum(p.nbytes for p in workflow.encoder.model.parameters())
    took = {}
    two_layers = 800 * 2**20
    for share, budget in (
        ("none", None),
        ("half", f"{(whole // 2 + two_layers) // 2**20}MB"),
        ("all", "16GB"),
    ):
        placed = place("model", workflow.encoder, vram_budget=budget)
        took[share] = timed(comfy, workflow, placed)
        comfy.mm.unload_all_models()
    print({share: round(ms, 1) for share, ms in took.items()})  # noqa: T201
    assert took["half"] <= 0.55 * took["none"]
    assert took["all"] < 0.1 * took["none"]


def timed(comfy: ComfyUI, workflow: Workflow, placed: PlacedObject) -> float:
    """Milliseconds of the second use."""
    for _ in range(2):
        with comfy.sim.measure() as m:
            workflow.encode(placed.patcher)
            torch.accelerator.synchronize()
    return float(m.ms)


@pytest.mark.card(profile="rtx4090", shapes=True, cap=24 * GB)
@pytest.mark.parametrize(("card", "gain"), [(12, 1.5), (16, 1.6), (24, 1)])
def test_with_dynamic_vram_the_encoder_gives_way(comfy: ComfyUI, card: int, gain: float) -> None:
    """On the two smaller cards core evicts the diffusion model; on the largest one both fit.

    What counts is what a prompt takes more than a later step, and more than with everything resident.
    """
    if not comfy.has_dynamic:
        pytest.skip("This ComfyUI has no dynamic VRAM (it came after 0.3.75).")
    comfy.enable_dynamic()
    took = {}
    for system, room in (("resident", 40), ("core", card), ("ours", card)):
        comfy.sim.cap = room * GB
        workflow = Workflow(comfy)
        if system == "ours":
            workflow.place()
        for _ in range(3):
            ms = workflow.prompt()
            ms -= workflow.steady_step()
        took[system] = ms
        held = workflow.diffusion.loaded_size()
        workflow.encode()
        lost = held - workflow.diffusion.loaded_size()
        comfy.mm.unload_all_models()
        del workflow
    print({system: round(ms, 1) for system, ms in took.items()})  # noqa: T201
    if gain == 1:
        assert took["ours"] <= 1.02 * took["core"]
    else:
        assert took["core"] - took["resident"] >= gain * (took["ours"] - took["resident"])
    assert lost < 0.4 * GB, "what its activations and what streams through take, and no weight's room"


@pytest.mark.card(profile="rtx4090", shapes=True, cap=16 * GB)
def test_what_the_diffusion_model_leaves_no_room_for_does_not_come_and_go(comfy: ComfyUI) -> None:
    """A resident weight that is evicted after every use costs its way back to the host, and saves nothing."""
    workflow = Workflow(comfy)
    workflow.place()
    for _ in range(2):
        workflow.prompt()
        workflow.steady_step()
    kept = workflow.encoder.loaded_size()
    assert kept > GB
    with comfy.sim.measure() as m:
        workflow.prompt()
        back = m.to_host
    assert back < 5_000_000, "no weight goes back"
    assert workflow.encoder.loaded_size() == kept
    comfy.mm.free_memory(
        1 << 50,
        comfy.sim.device,
        keep_loaded=[m for m in comfy.mm.current_loaded_models if m.model is workflow.encoder],
    )
    workflow.encode()
    assert workflow.encoder.loaded_size() > kept + GB // 2, "alone it takes all that it was allowed"


@pytest.mark.card(profile="rtx4090", shapes=True, cap=64 * GB)
@pytest.mark.parametrize(
    ("encoder", "demand", "decoding", "wishes"),
    [
        ("t5xxl", 2, 0, {}),
        ("t5xxl", 4, 0, {}),
        ("qwen7b", 4, 0, {}),
        ("t5xxl", 2, 4, {}),
        ("t5xxl", 2, 0, {"text_encoder": "resident"}),
        ("t5xxl", 2, 4, {"diffusion_model": "resident", "vae": "resident"}),
    ],
)
def test_more_memory_never_makes_a_prompt_slower(
    comfy: ComfyUI, encoder: str, demand: int, decoding: int, wishes: dict[str, str]
) -> None:
    """Around the card that all just fit on, a sampler and a VAE ask for memory that no plan knows of."""
    with_ours, without = [], []
    for beyond in (-128, 64, 512):
        for took, ours in ((without, False), (with_ours, True)):
            workflow = Workflow(comfy, encoder, demand=demand * GB, decoding=decoding * GB)
            comfy.sim.cap = workflow.fit_point + beyond * 2**20
            if ours:
                workflow.place(placements=wishes)
            for _ in range(5):  # the fourth may still pack what the third has left on the host
                ms = workflow.picture() if decoding else workflow.prompt()
                if not decoding:
                    workflow.steady_step()
            took.append(ms)
            comfy.mm.unload_all_models()
    print([round(ms) for ms in without], [round(ms) for ms in with_ours])  # noqa: T201
    for core, ours in zip(without, with_ours, strict=True):
        assert ours <= 1.02 * core
    for index, ours in enumerate(with_ours):
        assert ours <= 1.03 * min(with_ours[: index + 1])


@pytest.mark.card(profile="rtx4090", shapes=True, cap=64 * GB)
@pytest.mark.parametrize(
    ("encoder", "gigabytes", "demand", "wishes", "cards"),
    [("qwen7b", 20, 4, {}, (-64, 128)), ("t5xxl", 12, 0, {"text_encoder": "resident"}, (-1280, -1024))],
    ids=["left to us", "resident by hand"],
)
def test_with_dynamic_vram_more_memory_never_makes_a_prompt_slower(
    comfy: ComfyUI, encoder: str, gigabytes: int, demand: int, wishes: dict[str, str], cards: tuple[int, ...]
) -> None:
    """A few pages short of all of them: the token table is worth the least, and is looked up on the host."""
    if not comfy.has_dynamic:
        pytest.skip("This ComfyUI has no dynamic VRAM (it came after 0.3.75).")
    comfy.enable_dynamic()
    with_ours: list[float] = []
    for beyond in cards:
        took = {}
        for ours in (False, True):
            model = encoder_of_maps(comfy, encoder)
            workflow = Workflow(comfy, model, gigabytes, demand * GB, activations=demand * GB // 2)
            comfy.sim.cap = workflow.fit_point + beyond * 2**20
            placed = workflow.place(placements=wishes) if ours else None
            for _ in range(4):
                took[ours] = workflow.prompt()
                workflow.steady_step()
            if placed is not None and wishes:
                row = placed.placed[0].row()
                assert row.applied == "resident"
                assert "its token table (251 MB) is looked up in memory" in row.how
            comfy.mm.unload_all_models()
        assert took[True] <= 1.02 * took[False]
        with_ours.append(took[True])
    assert with_ours[1] <= 1.03 * with_ours[0]


@pytest.mark.card(profile="rtx4090", shapes=True, cap=64 * GB)
def test_what_was_taken_twice_does_not_come_and_go(comfy: ComfyUI) -> None:
    """A sampler that asks for more now and then has weights taken back, but not again and again."""
    workflow = Workflow(comfy, "qwen7b")
    comfy.sim.cap = workflow.fit_point + 64 * 2**20
    workflow.place()
    moved = []
    for demand in (4, 4, 4, 5, 4, 5, 4, 5, 4):
        workflow.demand = demand * GB
        with comfy.sim.measure() as m:
            workflow.encode()
            workflow.sample()
        moved.append(m.to_host)
    assert moved[1] > GB // 2
    assert max(moved[-4:]) < 5_000_000, "no weight goes back"


@pytest.mark.card(profile="rtx4090", shapes=True, cap=64 * GB)
def test_what_another_workflow_left_loaded_does_not_count(comfy: ComfyUI) -> None:
    """ComfyUI evicts it once, and nothing of this prompt brings it back: no encoder has to stream for it."""
    plans, times = [], []
    for others in (False, True):
        workflow = Workflow(comfy)
        comfy.sim.cap = workflow.fit_point + 3 * GB
        if others:
            left = workflow.patcher(Diffusion(comfy.ops.manual_cast, 8))
            comfy.mm.load_models_gpu([left])
            assert left.loaded_size() > 7 * GB
        plans.append([(d.placement, d.reason) for _, d in workflow.place().decided])
        for _ in range(3):
            ms = workflow.prompt()
            workflow.steady_step()
        times.append(ms)
        comfy.mm.unload_all_models()
    assert plans[1] == plans[0]
    assert "fit" in plans[0][0][1]
    assert times[1] <= 1.02 * times[0]
