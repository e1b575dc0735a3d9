"""A load that fails and a native layer that refuses, under dynamic VRAM: nothing stays behind, and the encode runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import pytest
import torch

from . import comfy_models
from .aimdo import vbar
from .comfyui import ComfyUI
from .placing import BIG, ours_on, place
from .test_inside_dynamic import dynamic, encode, hooks_on

__all__ = ["dynamic"]

pytestmark = pytest.mark.usefixtures("_inference_mode")


class Failure(Exception):
    """Of somebody else's."""


@contextmanager
def failing_load(comfy: ComfyUI, patcher: Any, kind: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let every load of a patcher fail: before ComfyUI has told anybody of it, or in a callback behind ours."""

    def fail(*_: object) -> NoReturn:
        if kind == "out of memory":
            torch.empty(2 * BIG, dtype=torch.uint8, device=comfy.sim.device)
        raise Failure

    if kind == "load":
        with monkeypatch.context() as patch:
            patch.setattr(vbar.ModelVBAR, "prioritize", fail)
            yield
    else:
        patcher.add_callback_with_key(comfy.model_patcher.CallbacksMP.ON_LOAD, "somebody else", fail)
        yield
        patcher.remove_callbacks_with_key(comfy.model_patcher.CallbacksMP.ON_LOAD, "somebody else")


@pytest.mark.parametrize("loaded_before", [False, True], ids=["first", "again"])
@pytest.mark.parametrize("kind", ["load", "callback", "out of memory"])
def test_a_load_that_fails_leaves_nothing_on_the_model(
    dynamic: ComfyUI, monkeypatch: pytest.MonkeyPatch, kind: str, loaded_before: bool
) -> None:
    wired = comfy_models.clip_l(dynamic)
    expected = encode(dynamic, wired)
    dynamic.mm.unload_all_models()
    model = wired.patcher.model
    attributes = {name: set(m.__dict__) for name, m in model.named_modules()}
    placed = place("clip", wired, vram_budget="90MB")
    if loaded_before:
        encode(dynamic, placed.value)
    with failing_load(dynamic, placed.patcher, kind, monkeypatch):
        for _ in range(2):
            with pytest.raises((Failure, torch.OutOfMemoryError)):
                encode(dynamic, placed.value)
            assert (hooks_on(model), ours_on(model)) == (0, set())
            assert not placed.patcher.is_injected
            assert placed.row.how.startswith("not loaded now")
            dynamic.mm.unload_all_models()
            assert {name: set(m.__dict__) for name, m in model.named_modules()} == attributes
    other = place("clip", wired)
    for clip in (other.value, placed.value, wired, placed.value):
        assert torch.equal(encode(dynamic, clip), expected)
    assert hooks_on(model) == 1


def test_two_policies_that_are_loaded_at_once_count_each_pass_once(dynamic: ComfyUI) -> None:
    """A model that runs its layers once is not taken to loop, whoever watches it."""
    wired = comfy_models.clip_l(dynamic)
    model, device = wired.cond_stage_model, dynamic.sim.device
    one, two = place("clip", wired), place("clip", wired, vram_budget="90MB")
    for _ in range(2):
        dynamic.mm.load_models_gpu([one.patcher, two.patcher])
        assert hooks_on(model) == 2, "both are loaded, and core has detached neither"
        model.reset_clip_options()
        model.set_clip_options({"layer": None, "execution_device": device})
        model.encode_token_weights(wired.tokenize("fox"))
        dynamic.end_node()
        assert "its pages use what is free, and go first" in one.row.how
        assert "its pages use what is free, and go first" in two.row.how


def refuse(method: str) -> Callable[..., NoReturn]:
    def refused(*_: object) -> NoReturn:
        raise RuntimeError(f"VBAR {method} failed")

    return refused


@pytest.mark.parametrize("how", ["lacks", "fails"])
@pytest.mark.parametrize("method", ["get_residency", "get_watermark", "set_watermark"])
def test_the_report_says_what_the_native_layer_does_not_tell(
    dynamic: ComfyUI, monkeypatch: pytest.MonkeyPatch, method: str, how: str
) -> None:
    wired = comfy_models.clip_l(dynamic)
    expected = encode(dynamic, wired)
    if how == "lacks":
        monkeypatch.delattr(vbar.ModelVBAR, method)
    else:
        monkeypatch.setattr(vbar.ModelVBAR, method, refuse(method))
    placed = place("clip", wired, vram_budget="90MB")
    for _ in range(2):
        assert torch.equal(encode(dynamic, placed.value), expected)
        said = placed.row.how
        assert method in said
        assert ("at most" in said) == (method == "get_residency")
        held = placed.patcher._vbar_get().loaded_size() >> 20
        assert f"{held} MB" in said
        assert placed.row.applied == ("resident" if method == "set_watermark" else "layerwise")
