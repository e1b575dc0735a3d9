"""Spans as a Chrome trace: JSON of the Trace Event Format, which Perfetto and chrome://tracing open.

A viewer draws what lies inside of something else below it, and drops what overlaps it in part; so spans of a track that
overlap get rows of their own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from .spans import HOST, Span, Track

_SLACK = 1000
"""Nanoseconds by which two neighbours may overlap: the clock of a device is no finer."""

_ABOUT = {
    "made by": "Layerwise Offload",
    "shows": "components that are placed; what ComfyUI copies by itself while they compute is not seen",
}

_ORDER = {track: number for number, track in enumerate(Track)}

Event = dict[str, Any]


def chrome_trace(
    spans: Sequence[Span], *, dropped: int = 0, unfinished: int = 0, about: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return a trace of spans.

    Args:
        spans: in any order.
        dropped: how many older ones are not among them.
        unfinished: how many were not over yet.
        about: what else is to be said of the run; goes into the trace as it is.
    """
    tracks: defaultdict[tuple[str, Track], list[Span]] = defaultdict(list)
    for span in spans:
        tracks[span.device, span.track].append(span)
    devices = sorted({device for device, _ in tracks}, key=lambda device: (device != HOST, device))
    events: list[Event] = []
    for number, device in enumerate(devices, 1):
        events += _named("process", number, 0, device, number)
        thread = 0
        for track in sorted((track for one, track in tracks if one == device), key=_ORDER.__getitem__):
            for more, row in enumerate(_rows(tracks[device, track])):
                thread += 1
                name = f"{track.value} ({more + 1})" if more else track.value
                events += _named("thread", number, thread, name, thread)
                events += (_complete(number, thread, *placed) for placed in row.spans)
    notes = list(_notes(dropped, unfinished))
    first = min((span.begin for span in spans), default=0.0)
    for note in notes:
        events.append({"ph": "i", "s": "g", "name": note, "pid": 1, "tid": 1, "ts": round(first * 1e6, 3)})
    counts = {"dropped": str(dropped), "unfinished": str(unfinished)}
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {**_ABOUT, **(about or {}), **counts},
    }


def _notes(dropped: int, unfinished: int) -> Iterator[str]:
    if dropped:
        yield f"{dropped} older events were dropped: only the newest are kept"
    if unfinished:
        yield f"{unfinished} events were not over yet"


class _Row:
    """Spans of which one lies inside of another or beside it: begin and end in nanoseconds."""

    def __init__(self) -> None:
        self.spans: list[tuple[int, int, Span]] = []
        self._ends: list[int] = []  # when those end that have begun, the innermost last
        self._latest = float("-inf")  # when the last one begins

    def take(self, begin: int, end: int, span: Span) -> bool:
        """Take a span that begins after the last one, or with it; return whether it fits in."""
        ends = self._ends.copy()
        if begin < self._latest:  # that one was moved a little
            if end <= self._latest:
                return False
            begin = int(self._latest)
        while ends and ends[-1] <= begin:
            ends.pop()
        while ends and end > ends[-1]:
            if ends[-1] - begin <= _SLACK:
                begin = ends.pop()
            elif end - ends[-1] <= _SLACK:
                end = ends[-1]
            else:
                return False
        self.spans.append((begin, end, span))
        self._ends, self._latest = [*ends, end], begin
        return True


def _rows(spans: Iterable[Span]) -> list[_Row]:
    """Share spans out to as few rows as it takes."""
    rows: list[_Row] = []
    timed = ((round(span.begin * 1e9), round((span.begin + span.seconds) * 1e9), span) for span in spans)
    for one in sorted(timed, key=lambda one: (one[0], -one[1])):
        if not any(row.take(*one) for row in rows):
            rows.append(_Row())
            rows[-1].take(*one)
    return rows


def _named(kind: str, process: int, thread: int, name: str, order: int) -> Iterator[Event]:
    for what, args in (("name", {"name": name}), ("sort_index", {"sort_index": order})):
        yield {"ph": "M", "name": f"{kind}_{what}", "pid": process, "tid": thread, "args": args}


def _complete(process: int, thread: int, begin: int, end: int, span: Span) -> Event:
    args: dict[str, Any] = {"component": span.component}
    if span.layer:
        args["layer"] = span.layer
    if span.moved or span.tier:
        args["bytes"] = span.moved
    if span.tier:
        args["tier"] = span.tier
    return {
        "ph": "X",
        "name": f"{span.component} {span.layer}".rstrip(),
        "cat": span.track.value,
        "pid": process,
        "tid": thread,
        "ts": begin / 1000,
        "dur": (end - begin) / 1000,
        "args": args,
    }
