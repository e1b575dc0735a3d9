"""What happened when: the intervals of a run, sums over them, and a Chrome trace."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

COMPUTE, TO_DEVICE, TO_HOST, HOST = "compute", "to_device", "to_host", "host"


@dataclass(frozen=True, slots=True)
class Interval:
    """One piece of work. Times in microseconds since the simulation began."""

    kind: str
    name: str
    row: str
    start: float
    end: float
    moved: int
    pinned: bool = True

    @property
    def duration(self) -> float:
        return self.end - self.start


class Timeline:
    """Every kernel, transfer and host copy or wait, in the order in which they were launched."""

    def __init__(self) -> None:
        self.intervals: list[Interval] = []

    def __len__(self) -> int:
        return len(self.intervals)

    def add(self, interval: Interval) -> None:
        self.intervals.append(interval)

    def of(self, kind: str, since: int = 0) -> Iterator[Interval]:
        return (interval for interval in self.intervals[since:] if interval.kind == kind)

    def kernels(self, since: int = 0) -> int:
        """How many kernels ran on the device. Equality of results cannot show that a run left it."""
        return sum(1 for _ in self.of(COMPUTE, since))

    def moved(self, kind: str, since: int = 0, pageable_only: bool = False) -> int:
        """Bytes transferred in one direction."""
        return sum(i.moved for i in self.of(kind, since) if not (pageable_only and i.pinned))

    def overlap(self, first: str, second: str, since: int = 0) -> float:
        """Microseconds during which work of both kinds was under way."""
        a = sorted((i.start, i.end) for i in self.of(first, since))
        b = sorted((i.start, i.end) for i in self.of(second, since))
        total, i, j = 0.0, 0, 0
        while i < len(a) and j < len(b):
            total += max(0.0, min(a[i][1], b[j][1]) - max(a[i][0], b[j][0]))
            if a[i][1] <= b[j][1]:
                i += 1
            else:
                j += 1
        return total

    def write_chrome_trace(self, path: str | Path) -> Path:
        """Write a file for chrome://tracing or Perfetto: one row per stream and lane, and per thread."""
        rows = {name: number for number, name in enumerate(sorted({i.row for i in self.intervals}))}
        events: list[dict[str, object]] = [
            {"ph": "M", "name": "thread_name", "pid": 0, "tid": number, "args": {"name": name}}
            for name, number in rows.items()
        ]
        for i in self.intervals:
            event = {"ph": "X", "name": i.name, "cat": i.kind, "pid": 0, "tid": rows[i.row], "ts": i.start}
            events.append({**event, "dur": i.duration, "args": {"bytes": i.moved, "pinned": i.pinned}})
        target = Path(path)
        target.write_text(json.dumps({"traceEvents": events}), encoding="utf-8")
        return target
