"""What is measured of a component, whatever ends its use: seconds of the calls that ended, in the run they were in."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import comfy.model_management as mm
import pytest
import torch
from comfy.model_patcher import ModelPatcher
from torch import nn

from offload_runtime.adapter import Placements, apply_policy
from offload_runtime.adapter.record import record_of
from offload_runtime.policy import Policy, Source, SourceKind

CPU = torch.device("cpu")


class Layered(nn.Module):
    """Layers below a module that is called, as in a text encoder; the root is called by another name."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4))).requires_grad_(False)
        self.outer = nn.Sequential(nn.Linear(64, 64)).requires_grad_(False)
        self.fails: BaseException | None = None
        self.inner[1].register_forward_pre_hook(self._fail)

    def _fail(self, *_: Any) -> None:
        if self.fails is not None:
            raise self.fails

    def encode(self, x: torch.Tensor) -> Any:
        return self.inner(x)


class Clip:
    def __init__(self, patcher: Any) -> None:
        self.patcher = patcher

    def clone(self) -> Clip:
        return Clip(self.patcher.clone())


@pytest.fixture
def placed() -> Iterator[tuple[Any, Any]]:
    """A component on the CPU that is left to ComfyUI, and its placements."""
    clip = Clip(ModelPatcher(Layered(), CPU, CPU))
    policy = Policy.from_widgets(Source(SourceKind.NODE, "node 1"))
    objects, placements = apply_policy(policy, {"clip": clip}, {}, Placements())
    yield objects["clip"].patcher, placements
    mm.unload_all_models()
    mm.free_memory(1e30, CPU)


@contextmanager
def prompt(name: str) -> Iterator[None]:
    with importlib.import_module("comfy_execution.utils").CurrentNodeContext(name, "1"):
        yield


def use(patcher: Any) -> None:
    mm.load_models_gpu([patcher])
    patcher.model.encode(torch.zeros(1, 64))


def measured(placements: Placements) -> Any:
    return placements.report().rows[0].measured


def test_nothing_is_measured_before_the_first_use(placed: tuple[Any, Any]) -> None:
    assert measured(placed[1]) is None


def test_calls_of_one_run_add_up_and_the_next_one_begins_anew(placed: tuple[Any, Any]) -> None:
    patcher, placements = placed
    with prompt("one"):
        use(patcher)
        use(patcher)
        assert measured(placements).calls == 2
    with prompt("two"):
        use(patcher)
        found = measured(placements)
    assert found.calls == 1
    assert 0 < found.computing < 60
    assert found.moments[0] >= 0
    assert found.moments[1] - found.moments[0] >= found.computing * 0.99


def test_a_component_that_another_run_used_says_so(placed: tuple[Any, Any]) -> None:
    patcher, placements = placed
    with prompt("one"):
        use(patcher)
        assert measured(placements).in_this_run
    with prompt("two"):
        assert not measured(placements).in_this_run
        assert "not used in this run" in placements.report().text()


@pytest.mark.parametrize(
    "error", [mm.InterruptProcessingException(), RuntimeError("out of something"), KeyboardInterrupt()]
)
def test_a_use_that_was_cut_short_does_not_spoil_the_next(
    placed: tuple[Any, Any], error: BaseException
) -> None:
    patcher, placements = placed
    with prompt("one"):
        patcher.model.fails = error
        with pytest.raises(type(error)):
            use(patcher)
        patcher.model.fails = None
        use(patcher)
        assert measured(placements).calls in (1, 2)
    with prompt("two"):
        patcher.model.fails = error
        with pytest.raises(type(error)):
            use(patcher)
    patcher.model.fails = None
    with prompt("three"):
        mm.load_models_gpu([patcher])
        patcher.model.outer(torch.zeros(1, 64))
        use(patcher)
        assert measured(placements).calls == 2


def test_a_use_that_ran_out_of_memory_is_noted_for_its_run(placed: tuple[Any, Any]) -> None:
    patcher, placements = placed
    with prompt("one"):
        patcher.model.fails = torch.OutOfMemoryError("no more")
        with pytest.raises(torch.OutOfMemoryError):
            use(patcher)
        patcher.model.fails = None
        use(patcher)  # as a VAE does in tiles
        assert record_of(patcher.model).uses.failed
        placements.report()
    with prompt("two"):
        patcher.model.fails = RuntimeError("something else")
        with pytest.raises(RuntimeError):
            use(patcher)
        assert not record_of(patcher.model).uses.failed


def test_no_hook_is_left_when_it_is_unloaded(placed: tuple[Any, Any]) -> None:
    patcher, _ = placed

    def hooks() -> int:
        return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in patcher.model.modules())

    before = hooks()
    use(patcher)
    assert hooks() > before
    patcher.detach()
    assert hooks() == before


def test_a_compiled_model_is_left_whole(placed: tuple[Any, Any]) -> None:
    """Nothing of ours is in its graph, and it is not timed."""
    patcher, placements = placed
    mm.load_models_gpu([patcher])
    graphs = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(patcher.model.encode, backend=backend, fullgraph=True)
    compiled(torch.zeros(1, 64))
    assert len(graphs) == 1
    assert measured(placements) is None


def test_what_a_sampler_is_given_can_be_copied(placed: tuple[Any, Any]) -> None:
    patcher = ModelPatcher(Layered(), CPU, CPU)
    policy = Policy.from_widgets(Source(SourceKind.NODE, "node 1"))
    objects, _ = apply_policy(policy, {"model": patcher}, {}, Placements())
    copy.deepcopy(objects["model"].wrappers)
