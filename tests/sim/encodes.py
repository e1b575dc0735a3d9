"""Prompts whose texts are encoded by several nodes, one image after the other, as ComfyUI's executor runs them."""

from __future__ import annotations

import contextlib
import gc
import importlib
import random
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from . import Accelerator
from .comfyui import ComfyUI
from .crosscheck.standins import Geometry, StandIn
from .prompt_change import GB, Workflow

LOADER, SAMPLER = "1", "2"

ALIKE = 2
"""From this step on, steps take the same time: the others are not simulated."""

Texts = Sequence["str | tuple[str, ...]"]
"""What each encode node is given; one that is given several texts encodes all of them."""


class Work(NamedTuple):
    """What is rendered.

    Attributes:
        layers: layers of the encoder, of 0.4 GB each.
        gigabytes: the size of the diffusion model.
        card: gigabytes of the card.
        steps: steps of the sampler.
        encodes: how many texts are encoded for each image.
        dynamic: whether ComfyUI uses dynamic VRAM.
    """

    layers: int
    gigabytes: int
    card: int
    steps: int
    encodes: int
    dynamic: bool


class Image(NamedTuple):
    """What one image takes in seconds, and what of that is more than its steps would take one after the other."""

    seconds: float
    beyond: float


class Images(Workflow):
    """An encoder that several nodes use, and a diffusion model.

    Args:
        comfy: ComfyUI; switch dynamic VRAM on before, if it is wanted.
        layers: layers of the encoder.
        gigabytes: the size of the diffusion model.
    """

    def __init__(self, comfy: ComfyUI, layers: int, gigabytes: int) -> None:
        super().__init__(comfy, encoder(comfy, layers), gigabytes)
        self._prompts = 0
        self._before: Texts = ()

    def place_from(self, host: str) -> None:
        """Leave everything to the pack but where masters are: that depends on the memory of this machine."""
        from offload_runtime.policy import Policy, Source, SourceKind

        source = Source(SourceKind.NODE, "Placement Policy, node 1")
        with self._node(LOADER):
            self.apply(Policy.for_component(source, "text_encoder", host=host))

    def image(self, texts: Texts, steps: int) -> Image:
        """Render one image; nodes whose text is the one of the last image do not run."""
        self._prompts += 1
        nodes = {f"text {i}": text for i, text in enumerate(texts)}
        cached = {f"text {i}": text for i, text in enumerate(self._before)}
        self._before = texts
        _executing(f"prompt {self._prompts}", nodes)
        with self.comfy.sim.measure() as m:
            for node, text in nodes.items():
                if cached.get(node) != text:
                    self._encode(node, 1 if isinstance(text, str) else len(text))
            with self._node(SAMPLER):
                self.load()
                for _ in range(min(steps, ALIKE) - 1):
                    self.step()
                with self.comfy.sim.measure() as last:
                    self.step()
                self.end_node()
        seconds = (m.ms + max(0, steps - ALIKE) * last.ms) / 1e3
        return Image(seconds, seconds - steps * last.ms / 1e3)

    def _encode(self, node: str, times: int) -> None:
        with self._node(node):
            for _ in range(times):
                self.encode()

    @contextlib.contextmanager
    def _node(self, node: str) -> Iterator[None]:
        utils = importlib.import_module("comfy_execution.utils")
        with utils.CurrentNodeContext(f"prompt {self._prompts}", node):
            yield


class Graph:
    """What ComfyUI's executor knows of the prompt that runs."""

    def __init__(self, nodes: dict[str, Any]) -> None:
        self._nodes = nodes

    def all_node_ids(self) -> set[str]:
        return set(self._nodes)

    def get_node(self, node_id: str) -> Any:
        return self._nodes[node_id]


def _executing(prompt_id: str, texts: dict[str, Any]) -> None:
    users = {
        node: {"class_type": "TextEncode", "inputs": {"text": text, "clip": [LOADER, 1]}}
        for node, text in texts.items()
    }
    links = {node: [node, 0] for node in users}
    sampler = {"class_type": "Sampler", "inputs": {"model": [LOADER, 0], **links}}
    graph = Graph({LOADER: {"class_type": "Loader", "inputs": {}}, **users, SAMPLER: sampler})
    importlib.import_module("comfy_execution.progress").reset_progress_state(prompt_id, graph)


class Pair(nn.Module):
    """A layer of two maps, 0.4 GB together: few operations, so that many workloads can be run."""

    def __init__(self, ops: Any) -> None:
        super().__init__()
        self.up, self.down = (ops.Linear(*size, bias=False) for size in ((4096, 24576), (24576, 4096)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.down(self.up(x))
        return y


def encoder(comfy: ComfyUI, layers: int) -> StandIn:
    """An encoder of pairs beside a token table of 0.26 GB."""
    ops = comfy.ops.manual_cast
    with comfy.dynamic_off(), torch.device("meta"):
        model = StandIn(Geometry(4096, 64, 1, 0, 256, table=32128, bias=False), ops)
        model.blocks = nn.ModuleList(Pair(ops) for _ in range(layers))
        model = model.to(model.geometry.dtype)
    return model.to_empty(device="cpu").eval().requires_grad_(False)


def render(work: Work, sequence: Sequence[Texts], *, ours: bool, host: str = "pinned") -> list[Image]:
    """Return what each image takes, with the pack or without."""
    with Accelerator("rtx4090", shapes=True, cap=work.card * GB) as sim, torch.inference_mode():
        comfy = ComfyUI(sim, dynamic=work.dynamic)
        try:
            images = Images(comfy, work.layers, work.gigabytes)
            if ours:
                images.place_from(host)
            return [images.image(texts, work.steps) for texts in sequence]
        finally:
            images = None  # type: ignore[assignment]
            gc.collect()
            comfy.close()


def all_new(encodes: int, images: int) -> list[list[str]]:
    """Texts of which every one is new for every image."""
    return [[f"text {n} of image {i}" for n in range(encodes)] for i in range(images)]


def random_work(seed: int) -> Work:
    """A workload of the kind that people have."""
    dice = random.Random(seed)
    return Work(
        layers=dice.randint(3, 36),
        gigabytes=dice.choice((4, 6, 8, 10, 12, 14, 16, 20, 24)),
        card=dice.choice((8, 10, 12, 16, 20, 24, 32)),
        steps=dice.randint(1, 30),
        encodes=dice.choice((1, 1, 1, 2, 2, 2, 3, 4, 5, 6, 8, 10, 12, 14, 16)),
        dynamic=dice.random() < 0.5,
    )
