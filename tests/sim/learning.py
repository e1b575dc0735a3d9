"""A workflow whose nodes ask ComfyUI for memory as its own do, and that is learnt from: run by run, start by start."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from .comfyui import ComfyUI
from .encodes import LOADER, SAMPLER, encoder
from .prompt_change import _MAP, GB, Diffusion, Workflow


class Sampled(Diffusion):
    """A diffusion model that says what it asks for, and takes what it really needs: bytes for each unit of a latent."""

    asks = takes = 0

    def extra_conds_shapes(self) -> dict[str, Any]:
        return {}

    def model_dtype(self) -> torch.dtype:
        return torch.bfloat16

    def memory_required(self, shape: Sequence[int], **_: Any) -> float:
        return self.asks * shape[0] * shape[2] * shape[3] / 2  # ComfyUI asks for both conds at once

    def take(self, shape: Sequence[int], x: torch.Tensor) -> None:
        held = torch.empty(self.takes * shape[0] * shape[2] * shape[3], dtype=torch.uint8, device=x.device)
        super().forward(x)
        del held

    def forward(self, x: torch.Tensor, shape: Sequence[int] = (1, 4, 1, 1)) -> None:
        self.take(shape, x)


class Decoding(nn.Module):
    """A VAE of some maps that takes more than it asks for, if it is told to."""

    takes = 0

    def __init__(self, ops: Any) -> None:
        super().__init__()
        with torch.device("meta"):
            maps = [ops.Linear(1024, 1024, bias=False, dtype=torch.bfloat16) for _ in range(4)]
        self.blocks = nn.ModuleList(m.to_empty(device="cpu").requires_grad_(False) for m in maps)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        held = torch.empty(self.takes, dtype=torch.uint8, device=x.device)
        for block in self.blocks:
            x = block(x)
        del held
        return x


class Learner(Workflow):
    """An encoder, a diffusion model and a VAE, run prompt by prompt as ComfyUI's executor does.

    Args:
        comfy: ComfyUI; switch dynamic VRAM on before, if it is wanted.
        layers: of the encoder, 0.4 GB each; or its geometry's name.
        gigabytes: the size of the diffusion model.
        asks: the bytes that a sampler asks for, at a size of 1.
        takes: those that it really takes.
        decoding: the bytes that the VAE asks for.
        decodes: those that it really takes.
    """

    prompts = 0

    def __init__(
        self,
        comfy: ComfyUI,
        layers: int | str = 22,
        gigabytes: int = 12,
        *,
        asks: int = GB,
        takes: int = 0,
        decoding: int = GB,
        decodes: int = 0,
    ) -> None:
        super().__init__(comfy, layers if isinstance(layers, str) else encoder(comfy, layers), gigabytes)
        self.diffusion.model.__class__ = Sampled
        self.diffusion.model.asks, self.diffusion.model.takes = asks, takes
        with comfy.dynamic_off():
            decoder = Decoding(comfy.ops.manual_cast)
        decoder.takes = decodes
        self.vae = self.patcher(decoder)
        self.decoder: Any = SimpleNamespace(
            patcher=self.vae,
            latent_dim=2,
            disable_offload=False,
            memory_used_decode=lambda shape, dtype=None: decoding * shape[2] * shape[3],
        )
        self.size = (1, 1)
        self.tiled = 0

    def apply(self, policy: Any, **beside: Any) -> Any:
        from offload_runtime.adapter import Placements, apply_policy

        from .prompt_change import TextEncoder

        objects = {"clip": TextEncoder(self.encoder), "model": self.diffusion, "vae": self.decoder}
        with self.node(LOADER):
            placed, placements = apply_policy(policy, objects, {}, Placements(), **beside)
        self.encoder, self.diffusion, self.decoder = placed["clip"].patcher, placed["model"], placed["vae"]
        self.vae = self.decoder.patcher
        return placements

    def run(self, *, encodes: bool = True, steps: int = 1) -> None:
        """One prompt. What runs out of memory ends it, and unloads all, but the VAE, which is tried again in tiles."""
        Learner.prompts += 1
        try:
            if encodes:
                with self.node("encode"):
                    self.encode()
            with self.node(SAMPLER):
                self.sample_for(steps)
            with self.node("decode"):
                self.decode()
        except torch.OutOfMemoryError:
            self.end_node()
            self.comfy.mm.unload_all_models()
            raise

    def sample_for(self, steps: int) -> None:
        """A sampler's node."""
        shape = [1, 4, *self.size]
        helpers = importlib.import_module("comfy.sampler_helpers")
        options = {"transformer_options": {"wrappers": self.diffusion.wrappers}}
        helpers.prepare_sampling(self.diffusion, shape, {}, model_options=options)
        x = torch.empty(4096, _MAP[0], dtype=torch.bfloat16, device=self.comfy.sim.device)
        for _ in range(steps):
            self.diffusion.model(x, shape)
        torch.accelerator.synchronize()
        self.end_node()

    def decode(self) -> None:
        """A VAE's node, as ComfyUI's `VAE.decode` does it."""
        device, tiles = self.comfy.sim.device, False
        try:
            asked = self.decoder.memory_used_decode((1, 4, *self.size), torch.bfloat16)
            self.comfy.mm.load_models_gpu([self.vae], memory_required=asked)
            self._decode(device)
        except torch.OutOfMemoryError:
            tiles = True
        if tiles:
            self.tiled += 1
            takes, self.vae.model.takes = self.vae.model.takes, 0
            self._decode(device)
            self.vae.model.takes = takes
        self.end_node()

    def _decode(self, device: Any) -> None:
        self.vae.model(torch.empty(1, 1024, dtype=torch.bfloat16, device=device)).cpu()

    @contextmanager
    def node(self, name: str) -> Iterator[None]:
        context = importlib.import_module("comfy_execution.utils").CurrentNodeContext
        with context(f"prompt {Learner.prompts}", name):
            yield


def restart(comfy: ComfyUI) -> None:
    """Forget all that is not kept in a file, as a new process has."""
    from offload_runtime.adapter import learning

    comfy.mm.unload_all_models()
    learning._stores.clear()
    gc.collect()


@contextmanager
def learns(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Let runs be learnt from; the file is in a folder of the test."""
    import folder_paths

    from offload_runtime.adapter import learning

    monkeypatch.setenv(learning.VARIABLE, "on")
    monkeypatch.setattr(folder_paths, "user_directory", str(folder))
    yield folder / "layerwise_offload" / "learned" / "runs.json"
    learning._stores.clear()
