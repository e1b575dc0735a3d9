"""Whose pages go first: one order over all placed components, whoever was loaded in between. Sizes, no numbers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from .aimdo import vbar
from .comfyui import ComfyUI
from .prompt_change import GB, Diffusion, TextEncoder, Workflow

pytestmark = [
    pytest.mark.usefixtures("_inference_mode"),
    pytest.mark.card(profile="rtx4090", shapes=True, cap=40 * GB),
]


class Studio(Workflow):
    """An encoder of 9.5 GB, a diffusion model of 4 GB and a VAE of 1 GB, with a policy on each."""

    def __init__(self, comfy: ComfyUI, **placements: str) -> None:
        from offload_runtime.policy import Policy, Source, SourceKind

        if not comfy.has_dynamic:
            pytest.skip("This ComfyUI has no dynamic VRAM (it came after 0.3.75).")
        comfy.enable_dynamic()
        super().__init__(comfy, gigabytes=4)
        self.vae = self.another(1)
        source = Source(SourceKind.NODE, "Placement Policy, node 1")
        self.apply(*(Policy.for_component(source, name, placement=word) for name, word in placements.items()))

    def another(self, gigabytes: int) -> Any:
        with self.comfy.dynamic_off():
            model = Diffusion(self.comfy.ops.manual_cast, gigabytes)
        return self.patcher(model)

    def apply(self, *policies: Any) -> None:
        from offload_runtime.adapter import Placements, apply_policy
        from offload_runtime.policy import Policy

        vae = SimpleNamespace(patcher=self.vae, latent_dim=2, disable_offload=False)
        objects = {"clip": TextEncoder(self.encoder), "model": self.diffusion, "vae": vae}
        placed, self.placements = apply_policy(Policy().extended(*policies), objects, {}, Placements())
        self.encoder, self.diffusion = placed["clip"].patcher, placed["model"]
        self.vae = placed["vae"].patcher

    def decode(self) -> None:
        self.run(self.vae, rows=64)

    def run(self, patcher: Any, rows: int = 64) -> None:
        self.comfy.mm.load_models_gpu([patcher])
        patcher.model(torch.empty(rows, 8192, dtype=torch.bfloat16, device=self.comfy.sim.device))
        torch.accelerator.synchronize()
        self.end_node()

    def row(self, component: str) -> Any:
        return next(r for r in self.placements.report().rows if r.component == component)

    def gone_first(self) -> list[str]:
        """Take the card away bit by bit, and return whose last page went first."""
        sim = self.comfy.sim
        names = {"encoder": self.encoder, "diffusion": self.diffusion, "vae": self.vae}
        assert all(patcher.loaded_size() > GB // 2 for patcher in names.values())
        order: list[str] = []
        taken = []
        sim.cap = sim.memory.reserved
        while len(order) < len(names):
            taken.append(torch.empty(vbar.PAGE, dtype=torch.uint8, device=sim.device))
            order += [n for n, p in names.items() if n not in order and not p._vbar_get().loaded_size()]
        del taken
        sim.cap = 40 * GB
        self.comfy.mm.soft_empty_cache()
        return order


def test_an_explicit_resident_goes_last_and_what_ran_once_first_on_every_prompt(comfy: ComfyUI) -> None:
    studio = Studio(comfy, text_encoder="layerwise", diffusion_model="resident")
    for _ in range(2):
        for node in (studio.encode, studio.sample, studio.decode):
            studio.encode()
            studio.sample()
            studio.decode()
            node()
            assert studio.gone_first() == ["encoder", "vae", "diffusion"]


def test_an_encoder_that_was_asked_to_stay_outlives_a_diffusion_model_left_to_comfyui(comfy: ComfyUI) -> None:
    studio = Studio(comfy, text_encoder="resident")
    for _ in range(2):
        studio.encode()
        studio.decode()
        studio.sample()
        assert studio.gone_first()[-1] == "encoder"
    assert "pages go last" in studio.row("text_encoder").how


def test_what_is_offloaded_goes_before_what_is_streamed(comfy: ComfyUI) -> None:
    studio = Studio(comfy, text_encoder="layerwise", vae="offload")
    for _ in range(2):
        studio.decode()
        studio.encode()
        studio.sample()
        assert studio.gone_first() == ["vae", "encoder", "diffusion"]


def test_the_order_comes_back_after_others_have_changed_it(comfy: ComfyUI) -> None:
    studio = Studio(comfy, text_encoder="layerwise", diffusion_model="resident")
    stranger = studio.another(1)
    studio.encode()
    studio.sample()
    studio.decode()
    studio.run(stranger)
    studio.encoder._vbar_get().prioritize()
    studio.decode()
    assert studio.gone_first() == ["encoder", "vae", "diffusion"]


def test_one_that_loops_takes_the_room_it_needs_from_the_second_pass_on(comfy: ComfyUI) -> None:
    """As an encoder that generates text token by token."""
    studio = Studio(comfy, text_encoder="layerwise")
    comfy.sim.cap = 12 * GB
    studio.sample()
    whole = studio.diffusion.loaded_size()
    encoder = studio.encoder

    def use(passes: int) -> int:
        """Encode and return how much of the diffusion model that took."""
        before = studio.diffusion.loaded_size()
        comfy.mm.load_models_gpu([encoder])
        for _ in range(passes):
            encoder.model(encoder.model.sample(comfy.sim.device)).cpu()
        studio.end_node()
        return before - studio.diffusion.loaded_size()

    assert use(1) < 0.4 * GB
    assert use(3) > GB
    studio.sample()
    assert studio.diffusion.loaded_size() == whole
    assert use(1) > GB, "it looped in its last use"
    studio.sample()
    assert use(1) < 0.4 * GB


@pytest.mark.parametrize("placement", ["layerwise", "resident"])
@pytest.mark.parametrize("gigabytes", [1, 4])
def test_a_budget_holds_at_every_instant(comfy: ComfyUI, placement: str, gigabytes: int) -> None:
    from offload_runtime.policy import Policy, Source, SourceKind

    studio = Studio(comfy)
    source = Source(SourceKind.NODE, "Placement Policy, node 1")
    budget = f"{gigabytes}GB"
    studio.apply(Policy.for_component(source, "text_encoder", placement=placement, vram_budget=budget))
    samples: list[int] = []

    def look(*_: object) -> None:
        buffers = sum(b.size() for b in comfy.mm.STREAM_AIMDO_CAST_BUFFERS.values())
        samples.append(studio.encoder.loaded_size() + buffers)

    hooks = [
        m.register_forward_hook(look) for m in studio.encoder.model.modules() if hasattr(m, "in_features")
    ]
    for _ in range(2):
        studio.encode()
        for place in (studio.sample, studio.decode):
            place()
            look()
    for hook in hooks:
        hook.remove()
    assert len(samples) > 300
    assert 0.75 * gigabytes * 2**30 < max(samples) <= gigabytes * 2**30
    assert studio.row("text_encoder").applied == "layerwise"
