"""What the report says was measured, beside the simulator's own accounting: seconds within 2 %, bytes exactly."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from .comfyui import ComfyUI
from .prompt_change import GB, Workflow
from .timeline import COMPUTE, TO_DEVICE

pytestmark = [
    pytest.mark.usefixtures("_inference_mode"),
    pytest.mark.card(profile="rtx4090", shapes=True, cap=24 * GB),
]
BOTH = pytest.mark.parametrize("dynamic", [True, False], ids=["dynamic", "legacy"])


class Counted(Workflow):
    """Counts what the simulator does in each use."""

    def __init__(self, comfy: ComfyUI) -> None:
        super().__init__(comfy, "t5xxl", 12, decoding=2 * GB)
        self.computing: dict[str, float] = {}
        self.waiting: dict[str, float] = {}
        self.moved: dict[str, int] = {}
        self.peaks: dict[str, int] = {}
        self.most = self.most_in_use = 0
        memory, grow = comfy.sim.memory, comfy.sim.memory._grow

        def grows(size: int) -> None:
            grow(size)
            self.most, self.most_in_use = max(self.most, memory.live), max(self.most_in_use, memory.live)

        memory._grow = grows  # type: ignore[method-assign]

    def run(self, prompt: str) -> None:
        """One prompt, node by node."""
        context = importlib.import_module("comfy_execution.utils").CurrentNodeContext
        uses: dict[str, Callable[[], Any]] = {
            "text_encoder": self.encode,
            "diffusion_model": self.sample,
            "vae": self.decode,
        }
        self.most = self.comfy.sim.memory.live
        for name, use in uses.items():
            with context(prompt, name):
                model = {"text_encoder": self.encoder, "diffusion_model": self.diffusion, "vae": self.vae}[
                    name
                ]
                self.count(name, model.model, use)

    def count(self, name: str, model: Any, use: Callable[[], Any]) -> None:
        sim = self.comfy.sim
        calls: list[tuple[float, int]] = []

        def begins(*_: Any) -> None:
            sim.synchronize()
            calls.append((sim.clock, len(sim.timeline)))
            self.most_in_use = sim.memory.live

        def ends(*_: Any) -> None:
            begin, mark = calls[-1]
            ready = max(sim.clock, *(i.end for i in sim.timeline.of(COMPUTE, mark)))
            kernels = sum(i.duration for i in sim.timeline.of(COMPUTE, mark))
            self.computing[name] = (ready - begin) / 1e6
            self.waiting[name] = (ready - begin - kernels) / 1e6
            self.moved[name] = sim.timeline.moved(TO_DEVICE, mark)
            self.peaks[name] = self.most_in_use

        hooks = model.register_forward_pre_hook(begins), model.register_forward_hook(ends)
        use()
        for hook in hooks:
            hook.remove()


@pytest.fixture
def workflow(comfy: ComfyUI, dynamic: bool) -> Iterator[Counted]:
    if dynamic and not comfy.has_dynamic:
        pytest.skip("This ComfyUI has no dynamic VRAM (it came after 0.3.75).")
    if dynamic:
        comfy.enable_dynamic()
    yield Counted(comfy)
    comfy.mm.unload_all_models()


@BOTH
@pytest.mark.parametrize("placement", ["auto", "layerwise", "resident", "offload"])
def test_times_and_peaks_are_those_of_the_simulator(
    comfy: ComfyUI, workflow: Counted, dynamic: bool, placement: str
) -> None:
    placed = workflow.place(placements={"text_encoder": placement, "vae": placement})
    for prompt in ("one", "two"):
        workflow.run(prompt)
        report = placed.report()
        for row in report.rows:
            measured = row.measured
            assert measured.in_this_run
            assert measured.calls == 1
            assert measured.computing == pytest.approx(workflow.computing[row.component], rel=0.02)
            assert measured.peak_bytes == workflow.peaks[row.component]
            if measured.layer_runs:
                gaps = 0.02 * measured.computing  # between kernels, while the host launches the next one
                assert measured.waiting == pytest.approx(workflow.waiting[row.component], abs=gaps)
                beside = (
                    workflow.moved[row.component] - measured.moved_bytes
                )  # the rows of a table that were asked for
                assert 0 <= beside <= 0.001 * measured.moved_bytes

        assert report.card.used == workflow.most
