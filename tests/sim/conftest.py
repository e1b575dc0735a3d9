"""Fixtures of the simulated floor."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from . import Accelerator
from .comfyui import ComfyUI


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "card(**options): how the `sim` fixture makes its Accelerator")
    config.addinivalue_line("markers", "comfyui(**options): how the `comfy` fixture opens its ComfyUI")


@pytest.fixture(autouse=True, scope="package")
def _one_thread() -> Iterator[None]:
    """Threads that wait for each other on a busy machine cost more than they bring."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def sim(request: pytest.FixtureRequest) -> Iterator[Accelerator]:
    """A simulated card, on for one test; ``@pytest.mark.card(profile="h200", shapes=True)`` configures it."""
    marker = request.node.get_closest_marker("card")
    with Accelerator(**(marker.kwargs if marker else {})) as accelerator:
        yield accelerator


@pytest.fixture
def comfy(sim: Accelerator, request: pytest.FixtureRequest) -> Iterator[ComfyUI]:
    """Real ComfyUI on the simulated card; ``@pytest.mark.comfyui(vram="novram")`` configures it."""
    marker = request.node.get_closest_marker("comfyui")
    opened = ComfyUI(sim, **(marker.kwargs if marker else {}))
    yield opened
    opened.close()


@pytest.fixture
def _inference_mode() -> Iterator[None]:
    """ComfyUI's executor runs every node in it."""
    with torch.inference_mode():
        yield
