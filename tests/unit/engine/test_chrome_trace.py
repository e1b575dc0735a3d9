"""The trace that Perfetto and chrome://tracing open: named, and nothing in it that a viewer would drop."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from typing import Any

import pytest

from offload_runtime.engine.chrome_trace import chrome_trace
from offload_runtime.engine.spans import HOST, Span, Track

CARD = "cuda:0"
USE = Span(Track.COMPUTE, CARD, "text_encoder", "", 1.0, 0.5)
LAYER = Span(Track.COMPUTE, CARD, "text_encoder", "encoder.block.3", 1.1, 0.002)
COPY = Span(Track.COPY, CARD, "text_encoder", "encoder.block.4", 1.1, 0.004, 192_000, "pinned memory")
LOAD = Span(Track.LOAD, HOST, "vae", "", 0.25, 0.125, 10)


def spans_of(trace: dict[str, Any]) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event["ph"] == "X"]


def test_each_span_is_a_complete_event_in_microseconds_with_its_component_and_layer() -> None:
    trace = json.loads(json.dumps(chrome_trace([USE, LAYER, COPY, LOAD])))
    found = {event["name"] + "/" + event["cat"]: event for event in spans_of(trace)}
    assert set(found) == {
        "text_encoder/compute",
        "text_encoder encoder.block.3/compute",
        "text_encoder encoder.block.4/copies",
        "vae/loads",
    }
    copy = found["text_encoder encoder.block.4/copies"]
    assert copy["ts"] == pytest.approx(1_100_000)
    assert copy["dur"] == pytest.approx(4000)
    assert copy["args"] == {
        "component": "text_encoder",
        "layer": "encoder.block.4",
        "bytes": 192_000,
        "tier": "pinned memory",
    }
    assert found["text_encoder/compute"]["args"] == {"component": "text_encoder"}
    assert found["vae/loads"]["args"] == {"component": "vae", "bytes": 10}


def test_processes_and_threads_are_named_and_every_event_is_in_one_of_them() -> None:
    trace = chrome_trace([COPY, USE, LAYER, LOAD])
    names: dict[str, dict[Any, str]] = defaultdict(dict)
    for event in trace["traceEvents"]:
        if event["ph"] == "M" and event["name"].endswith("_name"):
            key = (event["pid"], event["tid"]) if event["name"] == "thread_name" else event["pid"]
            names[event["name"]][key] = event["args"]["name"]
    assert list(names["process_name"].values()) == [HOST, CARD]
    where = {
        (names["process_name"][e["pid"]], names["thread_name"][e["pid"], e["tid"]]) for e in spans_of(trace)
    }
    assert where == {(HOST, "loads"), (CARD, "compute"), (CARD, "copies")}


def test_it_says_what_is_not_in_it() -> None:
    trace = chrome_trace([COPY], dropped=7, unfinished=3, about={"run": "a1"})
    notes = [event["name"] for event in trace["traceEvents"] if event["ph"] == "i"]
    assert notes == ["7 older events were dropped: only the newest are kept", "3 events were not over yet"]
    assert trace["otherData"].items() >= {"run": "a1", "dropped": "7", "unfinished": "3"}.items()
    assert not [event for event in chrome_trace([COPY])["traceEvents"] if event["ph"] == "i"]


@pytest.mark.parametrize("seed", range(50))
def test_on_a_row_one_lies_inside_of_another_or_beside_it(seed: int) -> None:
    """A viewer drops what overlaps in part. Nothing moves by more than a microsecond for that."""
    dice = random.Random(seed)
    spans = [
        Span(Track.COMPUTE, CARD, "vae", str(n), dice.randint(0, 400) / 1e5, dice.randint(0, 100) / 1e5)
        for n in range(60)
    ]
    spans += [s._replace(begin=s.begin + s.seconds - 4e-7, layer=f"next {s.layer}") for s in spans]
    events = spans_of(chrome_trace(spans))
    assert len(events) == len(spans)
    given = {span.layer: span for span in spans}
    rows: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for event in events:
        begin, end = round(event["ts"] * 1000), round((event["ts"] + event["dur"]) * 1000)
        span = given[event["args"]["layer"]]
        assert abs(begin - span.begin * 1e9) <= 1001
        assert abs(end - (span.begin + span.seconds) * 1e9) <= 1001
        assert begin <= end
        rows[event["tid"]].append((begin, end))
    for row in rows.values():
        for a, b in row:
            for c, d in row:
                assert b <= c or d <= a or (a <= c and d <= b) or (c <= a and b <= d)
