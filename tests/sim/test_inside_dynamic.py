"""A placed component under dynamic VRAM computes what it computes without us, and the report reads the live pages."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

from . import comfy_models
from .aimdo import vbar
from .comfy_models import CPU
from .comfyui import ComfyUI
from .placing import BIG, MIB, PlacedObject, lora, ours_on, place

pytestmark = pytest.mark.usefixtures("_inference_mode")

TIGHT = 4 * vbar.PAGE
"""Room for one of the three pages of a CLIP and for what passes through."""

WISHES = [
    ("layerwise", {}),
    ("layerwise", {"vram_budget": "90MB"}),
    ("resident", {"vram_budget": "90MB"}),
    ("offload", {}),
    ("auto", {}),
]


@pytest.fixture
def dynamic(comfy: ComfyUI) -> ComfyUI:
    """ComfyUI with dynamic VRAM on an ample card."""
    if not comfy.has_dynamic:
        pytest.skip("This ComfyUI has no dynamic VRAM (it came after 0.3.75).")
    comfy.enable_dynamic()
    comfy.sim.cap = BIG
    return comfy


def encode(comfy: ComfyUI, clip: Any) -> torch.Tensor:
    """One text encode node."""
    result = comfy_models.encode(clip, "fox")[0]
    comfy.end_node()
    return result


def hooks_on(model: torch.nn.Module) -> int:
    """Return how many hooks a module has that has most of them: one for each patcher that is heard of."""
    return max(len(module._forward_pre_hooks) for module in model.modules())


def reloadable(comfy: ComfyUI, wired: Any, make: Any) -> Any:
    """Say how the patcher is made again, as core's loaders do."""

    def again(disable_dynamic: bool = False) -> Any:
        assert disable_dynamic, "only ever asked for an ordinary patcher"
        with comfy.dynamic_off():
            return make().patcher

    wired.patcher.cached_patcher_init = (again, ())
    return wired


@pytest.mark.parametrize("room", [BIG, TIGHT], ids=["fits", "tight"])
@pytest.mark.parametrize(("wish", "options"), WISHES, ids=str)
def test_the_numbers_are_those_without_us(
    dynamic: ComfyUI, wish: str, options: dict[str, str], room: int
) -> None:
    wired = comfy_models.clip_l(dynamic)
    expected = encode(dynamic, wired)
    dynamic.mm.unload_all_models()
    placed = place("clip", wired, wish, **options)
    dynamic.sim.cap = room
    for _ in range(3):
        assert torch.equal(encode(dynamic, placed.value), expected)
    row = placed.row
    assert row.layer_runs == 0
    assert row.tiers["sim:0"] >= placed.patcher._vbar_get().loaded_size()
    assert torch.equal(encode(dynamic, wired), expected)


@pytest.mark.parametrize("room", [BIG, TIGHT], ids=["fits", "tight"])
def test_loras_before_after_and_removed(dynamic: ComfyUI, room: int) -> None:
    """The same prompts in the same order, without us and with us."""

    def prompts(plain: Any, patched: Any) -> list[torch.Tensor]:
        clips = (plain, patched, lora(plain), plain, lora(patched, seed=4), patched, plain)
        results = [encode(dynamic, clip) for clip in clips]
        dynamic.mm.unload_all_models()
        return results

    wired = comfy_models.clip_l(dynamic)
    dynamic.sim.cap = room
    expected = prompts(wired, lora(wired))
    got = prompts(place("clip", wired).value, place("clip", lora(wired), "resident").value)
    for ours, core in zip(got, expected, strict=True):
        if room == BIG:
            assert torch.equal(ours, core)
        else:  # what ComfyUI keeps in a page is rounded, what it has just computed is not
            torch.testing.assert_close(ours, core, atol=2e-2, rtol=2e-2)
    assert torch.equal(got[0], got[3])
    assert torch.equal(got[0], got[6])
    assert not torch.allclose(got[0], got[1], atol=2e-2)
    assert not torch.allclose(got[1], got[4], atol=2e-2)


@pytest.mark.parametrize("wish", ["layerwise", "resident", "offload"])
def test_a_vae_and_a_diffusion_model_compute_the_same_numbers(dynamic: ComfyUI, wish: str) -> None:
    latent = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(1))
    vae, model = comfy_models.kl_vae(dynamic), comfy_models.sd3(dynamic)
    expected = vae.decode(latent), comfy_models.sample(dynamic, model)
    ours = place("vae", vae, wish), place("model", model, wish)
    for _ in range(2):
        assert torch.equal(comfy_models.sample(dynamic, ours[1].value), expected[1])
        assert torch.equal(ours[0].value.decode(latent), expected[0])
        dynamic.end_node()
    assert [placed.row.how.startswith("not loaded") for placed in ours] == [False, False]


def test_a_patched_token_table_is_used_as_patched(dynamic: ComfyUI) -> None:
    wired = comfy_models.clip_l(dynamic)
    key = next(k for k in wired.patcher.model_state_dict() if k.endswith("token_embedding.weight"))
    delta = torch.randn(
        wired.patcher.model_state_dict()[key].shape, generator=torch.Generator().manual_seed(1)
    )

    def patched(clip: Any) -> Any:
        clone = clip.clone()
        assert clone.add_patches({key: (delta * 0.1,)}, 1.0)
        return clone

    expected = encode(dynamic, patched(wired))
    dynamic.mm.unload_all_models()
    placed = place("clip", wired)
    with_patch = patched(placed.value)
    torch.testing.assert_close(encode(dynamic, with_patch), expected, atol=2e-2, rtol=2e-2)
    assert "looked up in memory" not in placed.row.how
    encode(dynamic, placed.value)
    assert "looked up in memory" in placed.row.how


def test_only_the_rows_of_the_token_table_are_copied(dynamic: ComfyUI) -> None:
    wired = comfy_models.clip_l(dynamic)
    table = sum(p.nbytes for n, p in wired.patcher.model.named_parameters() if "token_embedding" in n)
    moved = {}
    for name, clip in (("core", wired), ("ours", place("clip", wired).value)):
        with dynamic.sim.measure() as m:
            encode(dynamic, clip)
            moved[name] = m.to_device
        dynamic.mm.unload_all_models()
    assert moved["core"] - moved["ours"] > 0.98 * table


def test_branches_with_different_policies_do_not_mix(dynamic: ComfyUI) -> None:
    wired = comfy_models.clip_l(dynamic)
    expected = encode(dynamic, wired)
    lean, rich = place("clip", wired, vram_budget="90MB"), place("clip", wired, "resident")
    most = {id(lean): vbar.PAGE, id(rich): BIG}
    for placed in (lean, rich, lean, lean, rich):
        assert torch.equal(encode(dynamic, placed.value), expected)
        assert wired.patcher._vbar_get().loaded_size() <= most[id(placed)]
        other = rich if placed is lean else lean
        assert other.row.how.startswith("not loaded now")
        assert not placed.row.how.startswith("not loaded now")
    assert torch.equal(encode(dynamic, wired), expected)
    assert lean.row.how.startswith("not loaded now")
    assert wired.patcher._vbar_get().loaded_size() > vbar.PAGE, "no bar is left behind"


def test_clones_that_die_take_nothing_along(dynamic: ComfyUI) -> None:
    placed = place("clip", comfy_models.clip_l(dynamic))
    expected = encode(dynamic, placed.value)
    before = placed.row.how, hooks_on(placed.patcher.model), ours_on(placed.patcher.model)
    clone, patched = placed.value.clone(), lora(placed.value)
    del clone, patched
    gc.collect()
    assert (placed.row.how, hooks_on(placed.patcher.model), ours_on(placed.patcher.model)) == before
    assert torch.equal(encode(dynamic, placed.value), expected)


def test_nothing_is_left_on_the_model_after_it_was_unloaded(dynamic: ComfyUI) -> None:
    wired = comfy_models.clip_l(dynamic)
    encode(dynamic, wired)
    dynamic.mm.unload_all_models()
    attributes = {name: set(m.__dict__) for name, m in wired.patcher.model.named_modules()}
    placed = place("clip", wired, vram_budget="90MB")
    assert type(placed.patcher) is type(wired.patcher)
    assert placed.patcher.model_size() == wired.patcher.model_size(), "its ranges are made by this size"
    encode(dynamic, placed.value)
    methods = {"partially_load", "partially_unload", "model_size", "loaded_size", "load", "_load_list"}
    assert not methods & set(placed.patcher.__dict__)
    assert hooks_on(wired.patcher.model) == 1
    dynamic.mm.unload_all_models()
    assert {name: set(m.__dict__) for name, m in wired.patcher.model.named_modules()} == attributes
    assert hooks_on(wired.patcher.model) == 0


@pytest.mark.parametrize("kind", ["interrupt", "exception"])
def test_an_encode_that_fails_half_way_leaves_the_next_one_right(dynamic: ComfyUI, kind: str) -> None:
    dynamic.sim.cap = TIGHT
    placed = place("clip", comfy_models.clip_l(dynamic))
    expected = encode(dynamic, placed.value)

    def interrupt(*_: object) -> None:
        dynamic.mm.interrupt_current_processing(True)
        dynamic.mm.throw_exception_if_processing_interrupted()

    def fail(*_: object) -> None:
        raise ValueError("half-way")

    error, hook = {
        "interrupt": (dynamic.mm.InterruptProcessingException, interrupt),
        "exception": (ValueError, fail),
    }[kind]
    layers = "clip_l.transformer.text_model.encoder.layers"
    for index in (0, 3, 7):
        handle = placed.patcher.model.get_submodule(f"{layers}.{index}.mlp.fc2").register_forward_pre_hook(
            hook
        )
        with pytest.raises(error):
            encode(dynamic, placed.value)
        handle.remove()
        dynamic.end_node()
        assert torch.equal(encode(dynamic, placed.value), expected)
    assert hooks_on(placed.patcher.model) == 1


def test_other_models_take_its_pages_and_it_is_right_again(dynamic: ComfyUI) -> None:
    dynamic.sim.cap = 6 * vbar.PAGE
    placed, other = place("clip", comfy_models.clip_l(dynamic)), comfy_models.t5_base(dynamic)
    expected, theirs = encode(dynamic, placed.value), encode(dynamic, other)
    for _ in range(2):
        assert torch.equal(encode(dynamic, other), theirs)
        row = placed.row
        held = placed.patcher._vbar_get().loaded_size()
        assert f"{held // MIB} MB of 96 MB" in row.how or (held == 0 and row.how.startswith("0 B of 96 MB"))
        assert row.applied == "layerwise"
        assert torch.equal(encode(dynamic, placed.value), expected)


@pytest.mark.parametrize("lacking", ["deprioritize", "set_watermark"])
def test_a_native_layer_without_a_function_is_used_without_and_the_report_names_it(
    dynamic: ComfyUI, monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    monkeypatch.delattr(vbar.ModelVBAR, lacking)
    wired = comfy_models.clip_l(dynamic)
    expected = encode(dynamic, wired)
    placed = place("clip", wired, vram_budget="90MB")
    for _ in range(2):
        assert torch.equal(encode(dynamic, placed.value), expected)
    assert f"has no {lacking}" in placed.row.how
    assert ("at most" in placed.row.how) == (lacking != "set_watermark")


@pytest.mark.parametrize("slot", ["clip", "vae"])
def test_the_cpu_computes_with_weights_that_were_loaded_for_it(dynamic: ComfyUI, slot: str) -> None:
    make = {"clip": comfy_models.clip_l, "vae": comfy_models.kl_vae}[slot]
    latent = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(1))

    def run(value: Any) -> torch.Tensor:
        return encode(dynamic, value) if slot == "clip" else value.decode(latent)

    expected = run(make(dynamic, CPU))
    wired = reloadable(dynamic, make(dynamic), lambda: make(dynamic))
    placed = place(slot, wired, "cpu")
    assert not placed.patcher.is_dynamic()
    with dynamic.sim.measure() as m:
        assert torch.equal(run(placed.value), expected)
        assert m.kernels == 0
    assert placed.row.applied == "cpu"
    assert placed.placed.is_of(placed.patcher.model), "the report reads the model that computes"
    assert wired.patcher.is_dynamic()
    assert wired.patcher.load_device == dynamic.sim.device, "the input object is not touched"


@pytest.mark.parametrize("holder", ["loaded", "gone"])
def test_what_is_moved_to_the_cpu_leaves_nothing_on_the_card(dynamic: ComfyUI, holder: str) -> None:
    """Its pages go, be they those of a patcher that is loaded, or of one that was and is gone."""
    wired = reloadable(dynamic, comfy_models.clip_l(dynamic), lambda: comfy_models.clip_l(dynamic))
    live = dynamic.sim.memory.live
    used = place("clip", wired)
    expected = encode(dynamic, used.value)
    assert dynamic.sim.memory.live > live + vbar.PAGE
    if holder == "gone":
        del used
        gc.collect()
        assert dynamic.sim.memory.live > live + vbar.PAGE
    placed = place("clip", wired, "cpu")
    assert dynamic.sim.memory.live < live + MIB // 256, "core keeps a few bytes"
    encode(dynamic, placed.value)
    assert dynamic.sim.memory.live < live + MIB // 256
    assert torch.equal(encode(dynamic, wired), expected)
    assert hooks_on(wired.patcher.model) == 0


def test_a_lora_before_or_after_the_move_to_the_cpu_works(dynamic: ComfyUI) -> None:
    expected = encode(dynamic, lora(comfy_models.clip_l(dynamic, CPU)))
    wired = reloadable(dynamic, comfy_models.clip_l(dynamic), lambda: comfy_models.clip_l(dynamic))
    after, before = lora(place("clip", wired, "cpu").value), place("clip", lora(wired), "cpu").value
    assert torch.equal(encode(dynamic, after), expected)
    assert torch.equal(encode(dynamic, before), expected)


def test_what_core_loads_without_dynamic_vram_has_nothing_of_ours(dynamic: ComfyUI) -> None:
    """Core does that where hooks or a compiler need the weights to stand still."""
    wired = reloadable(dynamic, comfy_models.clip_l(dynamic), lambda: comfy_models.clip_l(dynamic))
    placed = place("clip", wired, vram_budget="90MB")
    ordinary = placed.patcher.get_non_dynamic_delegate()
    assert not ordinary.is_dynamic()
    assert not ordinary.attachments
    assert not ordinary.injections
    assert not any(ordinary.callbacks.get(kind) for kind in ("on_load", "on_clone", "on_detach"))


def test_what_cannot_be_loaded_again_stays_where_it_is_and_strict_refuses(dynamic: ComfyUI) -> None:
    from offload_runtime.errors import StrictPolicyError

    wired = comfy_models.clip_l(dynamic)
    expected = encode(dynamic, wired)
    placed: PlacedObject = place("clip", wired, "cpu")
    assert torch.equal(encode(dynamic, placed.value), expected)
    assert placed.row.applied == "comfyui"
    assert "the loader that it came from does not say how" in placed.row.why
    with pytest.raises(StrictPolicyError, match="has to be loaded a second time"):
        place("clip", wired, "cpu", strict="on")
