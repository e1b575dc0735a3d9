"""The timeline of a run on the CPU: what it names, what it keeps, and that nothing of it is left on a model."""

from __future__ import annotations

import gc
import importlib
import time
import uuid
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import comfy.model_management as mm
import models
import pytest
from comfy.model_patcher import ModelPatcher
from placing import place, policy

from offload_runtime.adapter import timeline
from offload_runtime.adapter.runs import current_run
from offload_runtime.engine.spans import Spans
from offload_runtime.errors import TimelineError

FAMILY = models.FAMILIES["clip"]


@contextmanager
def prompt() -> Iterator[None]:
    with importlib.import_module("comfy_execution.utils").CurrentNodeContext(uuid.uuid4().hex, "1"):
        yield


def events() -> list[dict[str, Any]]:
    return [event for event in timeline().trace["traceEvents"] if event["ph"] == "X"]


def of(track: str) -> list[dict[str, Any]]:
    return [event for event in events() if event["cat"] == track]


@pytest.fixture(autouse=True)
def _unload() -> Iterator[None]:
    yield
    mm.unload_all_models()


@pytest.fixture
def streamed(tmp_path: Path) -> Any:
    """A text encoder whose layers come from its file."""
    return place(FAMILY, FAMILY.make(), policy("layerwise"), tmp_path)


def test_each_layer_is_named_with_its_bytes_and_its_time(streamed: Any) -> None:
    with prompt():
        began = time.perf_counter()
        FAMILY.run(streamed.value)
        took = (time.perf_counter() - began) * 1e6
        row, copies, (use, *layers) = streamed.row, of("copies"), of("compute")
        (load,) = of("loads")
    assert sum(event["args"]["bytes"] for event in copies) == row.moved_bytes > 0
    assert {event["args"]["tier"] for event in copies} == {"file"}
    assert {event["args"]["component"] for event in events()} == {"text_encoder"}
    assert [event["args"]["layer"] for event in layers] == [event["args"]["layer"] for event in copies]
    assert len(layers) == row.layer_runs
    assert load["ts"] + load["dur"] <= use["ts"]
    assert load["dur"] + use["dur"] <= took
    for copy, layer in zip(copies, layers, strict=True):
        assert use["ts"] <= copy["ts"]
        assert copy["ts"] + copy["dur"] <= layer["ts"] + 1
        assert layer["ts"] + layer["dur"] <= use["ts"] + use["dur"]


def test_a_component_that_is_whole_has_its_uses() -> None:
    whole = place(FAMILY, FAMILY.make(), policy("resident"))
    with prompt():
        FAMILY.run(whole.value)
        (use,) = of("compute")
    assert use["args"] == {"component": "text_encoder"}
    assert not of("copies")


def test_the_file_is_named_after_the_run(streamed: Any) -> None:
    with prompt():
        FAMILY.run(streamed.value)
        when = time.strftime("%Y%m%d-%H%M%S", time.localtime(streamed.placements.report().began))
        assert timeline().name == f"layerwise-offload-timeline-{when}.json"


def test_memory_stays_bounded_over_many_runs_and_long_ones(streamed: Any) -> None:
    counts = []
    for _ in range(5):
        with prompt():
            current_run().spans = Spans(limit=50)
            for _ in range(20):
                FAMILY.run(streamed.value)
            counts.append(len(events()))
            dropped = current_run().spans.dropped
            (note,) = [e["name"] for e in timeline().trace["traceEvents"] if e["ph"] == "i"]
            assert note == f"{dropped} older events were dropped: only the newest are kept"
    assert counts == [50] * 5


def test_a_run_without_us_and_one_that_is_over_are_a_sentence(streamed: Any) -> None:
    with prompt():
        FAMILY.run(streamed.value)
        began = streamed.placements.report().began
        assert timeline(began).trace["traceEvents"]
    with prompt():
        with pytest.raises(TimelineError, match="another run has begun since"):
            timeline(began)
        mm.unload_all_models()
        with pytest.raises(TimelineError, match="no timeline of it"):
            timeline()


def test_nothing_of_it_is_left_on_a_patcher_or_keeps_a_model() -> None:
    value = FAMILY.make()
    patcher = models.patcher_of(value)
    placed = place(FAMILY, value, policy("resident"))
    assert "partially_load" not in patcher.__dict__, "the one that came in is not touched"
    assert "partially_load" in placed.patcher.__dict__
    with prompt():
        FAMILY.run(placed.value)
        model, ours = weakref.ref(patcher.model), weakref.ref(placed.patcher)
        assert events()
        mm.unload_all_models()
        del value, patcher, placed
        gc.collect()
        assert events(), "the record of the run has nothing but names and numbers"
    assert ours() is None
    assert model() is None


def test_a_load_that_fails_is_in_the_timeline_and_its_error_is_comfyuis(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: Any, **__: Any) -> int:
        time.sleep(0.002)
        raise RuntimeError("no room")

    placed = place(FAMILY, FAMILY.make(), policy("resident"))
    monkeypatch.setattr(ModelPatcher, "partially_load", fails)
    with prompt():
        with pytest.raises(RuntimeError, match="no room"):
            placed.patcher.partially_load(None)
        (load,) = of("loads")
    assert load["dur"] >= 2000
