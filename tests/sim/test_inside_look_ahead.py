"""`--disable-async-offload`: every layer is copied when it runs, and waited for; nothing is on its way ahead."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from . import comfy_models
from .comfyui import ComfyUI
from .placing import BIG, place, small_clip

pytestmark = pytest.mark.usefixtures("_inference_mode")


def streamed(comfy: ComfyUI, host: str) -> Any:
    """Place a CLIP that streams its four layers, and encode once, so that their order is known."""
    comfy.sim.cap = BIG
    clip = place("clip", small_clip(comfy), strict="on", host=host)
    comfy_models.encode(clip.value, "fox")
    return clip


@pytest.mark.parametrize("host", ["pinned", "staged"])
@pytest.mark.parametrize("flag", [False, True], ids=["ahead", "waits"])
def test_copies_are_made_ahead_unless_the_flag_forbids_it(
    comfy: ComfyUI, monkeypatch: pytest.MonkeyPatch, host: str, flag: bool
) -> None:
    monkeypatch.setattr(comfy.args, "disable_async_offload", flag)
    wired = small_clip(comfy)
    comfy.sim.cap = BIG
    expected = comfy_models.encode(wired, "fox")[0]
    clip = streamed(comfy, host)
    layers = [m for n, m in clip.patcher.model.named_modules() if n.rpartition(".")[0].endswith(".layers")]
    sizes = [sum(p.nbytes for p in layer.parameters()) for layer in layers]
    ledger = clip.placed._ledger
    before, seen = ledger.moved["memory"], []
    hooks = [
        layer.self_attn.register_forward_pre_hook(lambda *_: seen.append(ledger.moved["memory"] - before))
        for layer in layers
    ]
    with comfy.sim.measure() as m:
        assert torch.equal(comfy_models.encode(clip.value, "fox")[0], expected)
    for hook in hooks:
        hook.remove()
    asked = [sum(sizes[: at + 1]) for at in range(len(sizes))]
    ahead = sum(moved > wanted for moved, wanted in zip(seen, asked, strict=True))
    how = clip.row.how
    if flag:
        assert (ahead, m.overlap_ms) == (0, 0)
        assert "when it runs, and waited for" in how
        assert "while the one before it runs" not in how
        assert ledger.slot_peak < 2 * sizes[0], "one layer at a time"
    else:
        assert ahead == len(sizes) - 1
        assert m.overlap_ms > 0
        assert "while the one before it runs" in how


def test_the_flag_is_carried_out_and_said_and_refuses_nothing(
    comfy: ComfyUI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comfy.args, "disable_async_offload", True)
    decision = streamed(comfy, "pinned").placed.decision
    assert (str(decision.placement), decision.limits) == ("layerwise", ())
    assert "--disable-async-offload allows no look-ahead, so every layer is waited for" in decision.why
