"""A text encoder, a diffusion model and perhaps a VAE on one card, in real sizes (no numbers): what a prompt costs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from .comfyui import ComfyUI
from .crosscheck.standins import Block, StandIn, build
from .placing import end_node

GB = 10**9
_MAP = (8192, 15259)
"""A quarter of a gigabyte in bfloat16."""


class Encoder(StandIn):
    """An encoder whose table is asked for by the method that ComfyUI calls."""

    def get_input_embeddings(self) -> Any:
        return self.embed

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        x = self.get_input_embeddings()(given).to(self.geometry.dtype)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


class Maps(Block):
    """A layer of the same maps, and nothing else is run: what is copied is the same, in less time to simulate."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.q(x.flatten(0, -2))
        for key in (self.k, self.v):
            key(hidden)
        up = self.up(self.o(hidden))
        if self.gate is not None:
            self.gate(hidden)
        y: torch.Tensor = self.down(up)
        return y


def encoder_of_maps(comfy: ComfyUI, name: str) -> nn.Module:
    """Return an encoder of a geometry whose layers run their maps only."""
    with comfy.dynamic_off():
        model: Any = build(name, comfy.ops.manual_cast)
    for block in model.blocks:
        block.__class__ = Maps
    return model  # type: ignore[no-any-return]


class Diffusion(nn.Module):
    """Maps of a quarter of a gigabyte, four for each gigabyte."""

    def __init__(self, ops: Any, gigabytes: int) -> None:
        super().__init__()
        with torch.device("meta"):
            maps = [ops.Linear(*_MAP, bias=False, dtype=torch.bfloat16) for _ in range(4 * gigabytes)]
        self.blocks = nn.ModuleList(m.to_empty(device="cpu").requires_grad_(False) for m in maps)

    def forward(self, x: torch.Tensor) -> None:
        for block in self.blocks:
            block(x)


class TextEncoder:
    """What ComfyUI hands on as CLIP, as far as it is placed and loaded."""

    def __init__(self, patcher: Any) -> None:
        self.patcher = patcher

    def clone(self) -> TextEncoder:
        return TextEncoder(self.patcher.clone())


class Workflow:
    """The models, loaded and run as nodes do it.

    Args:
        comfy: ComfyUI; switch dynamic VRAM on before, if it is wanted.
        encoder: the name of its geometry, or the model itself.
        gigabytes: the size of the diffusion model.
        demand: the bytes that a sampler asks for beside the weights.
        decoding: the bytes that a VAE asks for beside its own, as `memory_used_decode` says; 0 for no VAE.
        activations: the bytes that a step really takes.
    """

    def __init__(
        self,
        comfy: ComfyUI,
        encoder: str | nn.Module = "t5xxl",
        gigabytes: int = 12,
        demand: int = 2 * GB,
        decoding: int = 0,
        activations: int = 0,
    ) -> None:
        self.comfy = comfy
        self.activations = activations
        self.demand, self.decoding = demand, decoding
        with comfy.dynamic_off():
            model: Any = build(encoder, comfy.ops.manual_cast) if isinstance(encoder, str) else encoder
            diffusion = Diffusion(comfy.ops.manual_cast, gigabytes)
            vae = build("kl_vae", comfy.ops.manual_cast) if decoding else None
        model.__class__ = Encoder
        self.encoder = self.patcher(model)
        self.encoder.is_clip = True
        self.diffusion = self.patcher(diffusion)
        self.vae = None if vae is None else self.patcher(vae)

    def patcher(self, model: nn.Module) -> Any:
        made = getattr(self.comfy.model_patcher, "CoreModelPatcher", self.comfy.model_patcher.ModelPatcher)
        return made(model, self.comfy.sim.device, torch.device("cpu"))

    @property
    def fit_point(self) -> int:
        """The bytes of the card on which the weights of both just fit beside what ComfyUI keeps free."""
        patchers = [one for one in (self.encoder, self.diffusion, self.vae) if one is not None]
        weights = sum(p.nbytes for patcher in patchers for p in patcher.model.parameters())
        return weights + int(self.comfy.mm.minimum_inference_memory())

    def place(self, **widgets: Any) -> Any:
        """Put a policy on all, as one loader node does; nothing is asked for unless given. Returns the placements."""
        from offload_runtime.policy import Policy, Source, SourceKind

        return self.apply(Policy.from_widgets(Source(SourceKind.NODE, "Placement Policy, node 1"), **widgets))

    def apply(self, policy: Any, **beside: Any) -> Any:
        """Put any policy on all; what else the prompt uses may be said."""
        from offload_runtime.adapter import Placements, apply_policy

        objects = {"clip": TextEncoder(self.encoder), "model": self.diffusion}
        if self.vae is not None:
            objects["vae"] = SimpleNamespace(patcher=self.vae, latent_dim=2, disable_offload=False)
        placed, placements = apply_policy(policy, objects, {}, Placements(), **beside)
        self.encoder, self.diffusion = placed["clip"].patcher, placed["model"]
        if self.vae is not None:
            self.vae = placed["vae"].patcher
        return placements

    def encode(self, patcher: Any = None) -> torch.Tensor:
        """A text encode node: load, run, and bring the result to the host."""
        patcher = patcher or self.encoder
        self.comfy.mm.load_models_gpu([patcher])
        result: torch.Tensor = patcher.model(patcher.model.sample(self.comfy.sim.device)).cpu()
        self.end_node()
        return result

    def load(self) -> None:
        """Load the diffusion model as a sampler does."""
        self.comfy.mm.load_models_gpu([self.diffusion], self.demand, minimum_memory_required=self.demand // 2)

    def step(self) -> None:
        """One step of a sampler that has loaded the model."""
        held = torch.empty(self.activations, dtype=torch.uint8, device=self.comfy.sim.device)
        self.diffusion.model(torch.empty(4096, _MAP[0], dtype=torch.bfloat16, device=self.comfy.sim.device))
        del held
        torch.accelerator.synchronize()

    def sample(self) -> None:
        """A sampler's node of one step."""
        self.load()
        self.step()
        self.end_node()

    def prompt(self, patcher: Any = None) -> float:
        """Return the milliseconds from a new prompt to the end of the first step."""
        with self.comfy.sim.measure() as m:
            self.encode(patcher)
            self.load()
            self.step()
        return float(m.ms)

    def steady_step(self) -> float:
        """Return the milliseconds of a later step, and end the sampler's node."""
        with self.comfy.sim.measure() as m:
            self.step()
        self.end_node()
        return float(m.ms)

    def decode(self) -> None:
        """A VAE's node."""
        vae: Any = self.vae
        self.comfy.mm.load_models_gpu([vae], memory_required=self.decoding)
        vae.model(vae.model.sample(self.comfy.sim.device)).cpu()
        self.end_node()

    def picture(self) -> float:
        """Return the milliseconds from a new prompt to its picture, of one step."""
        with self.comfy.sim.measure() as m:
            self.encode()
            self.sample()
            self.decode()
        return float(m.ms)

    def end_node(self) -> None:
        """What ComfyUI does after every node."""
        if getattr(self.encoder, "is_dynamic", bool)():
            self.comfy.end_node()
        else:
            end_node(self.comfy)
