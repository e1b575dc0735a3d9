"""The timeline beside the simulator's own: when it was within 2 %, bytes exactly, copies beside computing."""

from __future__ import annotations

import importlib
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from .comfyui import ComfyUI
from .prompt_change import GB, Workflow
from .timeline import COMPUTE, TO_DEVICE, Interval

pytestmark = [
    pytest.mark.usefixtures("_inference_mode"),
    pytest.mark.card(profile="rtx4090", shapes=True, cap=24 * GB),
]
LAUNCH = 8  # microseconds between an event on an idle stream and what the host launches behind it
BOTH = pytest.mark.parametrize("dynamic", [True, False], ids=["dynamic", "legacy"])


class Seen:
    """What the simulator did since it was asked to look, and what the timeline says of the run since then."""

    def __init__(self, comfy: ComfyUI) -> None:
        self.sim = comfy.sim
        self.mark = len(comfy.sim.timeline)

    def intervals(self, kind: str) -> list[Interval]:
        return list(self.sim.timeline.of(kind, self.mark))

    def events(self, track: str, component: str = "text_encoder") -> list[dict[str, Any]]:
        """Those of a track, in microseconds of the simulation."""
        from offload_runtime.adapter import timeline
        from offload_runtime.adapter.runs import current_run

        began = self.sim.clock - current_run().spans.now() * 1e6
        found = [event for event in timeline().trace["traceEvents"] if event["ph"] == "X"]
        return [
            {**event, "ts": event["ts"] + began, "end": event["ts"] + began + event["dur"]}
            for event in sorted(found, key=lambda event: event["ts"])
            if event["cat"] == track and event["args"]["component"] == component
        ]


@pytest.fixture
def workflow(comfy: ComfyUI, dynamic: bool, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workflow]:
    """Models on a card, and a host whose clock is the simulator's."""
    if dynamic and not comfy.has_dynamic:
        pytest.skip("This ComfyUI has no dynamic VRAM (it came after 0.3.75).")
    if dynamic:
        comfy.enable_dynamic()
    monkeypatch.setattr(time, "perf_counter", lambda: comfy.sim.clock / 1e6)
    yield Workflow(comfy, "t5xxl", 12, decoding=2 * GB)
    comfy.mm.unload_all_models()


def place(workflow: Workflow, wish: str, host: str = "auto") -> Any:
    from offload_runtime.policy import Policy, Source, SourceKind

    source = Source(SourceKind.NODE, "Placement Policy, node 1")
    policy = Policy.from_widgets(source, placements={"text_encoder": wish})
    return workflow.apply(policy.extended(Policy.for_component(source, "text_encoder", host=host)))


def prompt() -> Any:
    """A prompt of its own, in which a node runs."""
    context = importlib.import_module("comfy_execution.utils").CurrentNodeContext
    return context(uuid.uuid4().hex, "1")


@pytest.mark.parametrize("dynamic", [False], ids=["legacy"])
@pytest.mark.parametrize("host", ["pinned", "staged"])
def test_copies_and_layers_are_where_the_simulator_had_them(
    comfy: ComfyUI, workflow: Workflow, dynamic: bool, host: str
) -> None:
    placed = place(workflow, "layerwise", host)
    with prompt():
        workflow.encode()
    with prompt():
        seen = Seen(comfy)
        workflow.encode()
        row = next(row for row in placed.report().rows if row.component == "text_encoder")
        copies, (use, *layers) = seen.events("copies"), seen.events("compute")

        assert sum(event["args"]["bytes"] for event in copies) == row.measured.moved_bytes > 0
        beside_compute = [i for i in seen.intervals(TO_DEVICE) if not i.row.startswith("stream 0 ")]
        for event in copies:
            inside = [
                i for i in beside_compute if event["ts"] - 0.1 <= i.start and i.end <= event["end"] + 0.1
            ]
            assert event["args"]["bytes"] == sum(i.moved for i in inside)
            last, took = inside[-1].end, inside[-1].end - inside[0].start
            assert event["end"] == pytest.approx(last, abs=0.02 * took + LAUNCH)
            assert event["dur"] == pytest.approx(took, abs=0.02 * took + LAUNCH)

        kernels = seen.intervals(COMPUTE)
        assert use["name"] == "text_encoder"
        assert use["end"] == pytest.approx(max(k.end for k in kernels), abs=0.02 * use["dur"])
        names = [event["args"]["layer"] for event in layers]
        assert sorted(names) == sorted(event["args"]["layer"] for event in copies)
        assert len([name for name in names if name.count(".") == 1]) == row.measured.layer_runs
        for event in layers:
            inside = [k for k in kernels if event["ts"] - 1 <= k.start and k.end <= event["end"] + 1]
            assert event["end"] == pytest.approx(max(k.end for k in inside), abs=0.02 * event["dur"])
            assert use["ts"] <= event["ts"], "it is drawn below the use"
            assert event["end"] <= use["end"]

        beside = sum(
            max(0.0, min(a["end"], b["end"]) - max(a["ts"], b["ts"])) for a in copies for b in layers
        )
        truth = seen.sim.timeline.overlap(COMPUTE, TO_DEVICE, seen.mark)
        assert beside >= 0.95 * truth > 0


@pytest.mark.parametrize("dynamic", [False], ids=["legacy"])
def test_what_a_worker_reads_from_pageable_memory_is_on_a_track_of_the_host(
    comfy: ComfyUI, workflow: Workflow, dynamic: bool
) -> None:
    place(workflow, "layerwise", "staged")
    with prompt():
        workflow.encode()
    with prompt():
        seen = Seen(comfy)
        workflow.encode()
        copies, reads = seen.events("copies"), seen.events("reading weights")
    assert len(reads) == len(copies)
    for copy, read in zip(copies, reads, strict=True):
        assert read["args"] == copy["args"]
        assert read["args"]["tier"] == "memory"
        assert read["ts"] <= copy["ts"]
        assert copy["end"] <= read["end"] + LAUNCH
        assert read["end"] - copy["end"] <= 0.02 * copy["dur"] + 2 * LAUNCH, (
            "a pageable copy holds who asks for it"
        )


@BOTH
@pytest.mark.parametrize("wish", ["auto", "resident", "offload"])
def test_loads_and_calls_are_there_whoever_moves_the_weights(
    comfy: ComfyUI, workflow: Workflow, dynamic: bool, wish: str
) -> None:
    place(workflow, wish)
    with prompt():
        seen = Seen(comfy)
        workflow.encode()
        load, use, call = seen.events("loads")[0], seen.events("compute")[0], seen.events("calls")[0]
    kernels = seen.intervals(COMPUTE)
    assert use["end"] == pytest.approx(max(k.end for k in kernels), abs=0.02 * use["dur"])
    assert load["ts"] <= load["end"] <= use["ts"]
    assert call["ts"] <= use["ts"] + LAUNCH
    if dynamic:
        assert load["args"]["tier"] == "paged in by ComfyUI as it computes"
        assert load["dur"] == 0
    elif load["args"].get("bytes"):
        before = [i for i in seen.intervals(TO_DEVICE) if i.start < use["ts"]]
        assert load["args"]["bytes"] == pytest.approx(sum(i.moved for i in before), rel=0.001)
        assert load["ts"] <= before[0].start
        assert before[-1].end <= load["end"] + LAUNCH
        assert load["dur"] <= 1.02 * (before[-1].end - before[0].start) + LAUNCH * len(before)


@BOTH
def test_a_run_is_forgotten_when_the_next_one_begins(
    comfy: ComfyUI, workflow: Workflow, dynamic: bool
) -> None:
    from offload_runtime.adapter import timeline
    from offload_runtime.adapter.runs import current_run
    from offload_runtime.errors import TimelineError

    place(workflow, "layerwise")
    sizes = []
    for _ in range(4):
        with prompt():
            before = current_run().began
            workflow.encode()
            sizes.append(len(timeline(before).trace["traceEvents"]))
    assert sizes[1] == sizes[2] == sizes[3]
    with prompt():
        current_run()
    with pytest.raises(TimelineError, match="another run has begun"):
        timeline(before)
    with pytest.raises(TimelineError, match="the last run loaded and computed no placed component"):
        timeline()
