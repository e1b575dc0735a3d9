"""The engine's benchmark: simulated, so its figures are the same every time, and are held to their targets.

In a process of its own: the benchmark imports this floor under another name.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

TARGETS = {"clip_l": (7.1, 30), "siglip": (33.8, 65), "t5xxl": (376, 800), "reverse": (112, 460)}
"""Model → milliseconds of the second run from pinned memory, and megabytes of slots, at most."""


@pytest.fixture(scope="module")
def table() -> dict[tuple[str, str], tuple[float, float]]:
    command = [sys.executable, "-W", "ignore", "-m", "bench.engine", ",".join(TARGETS)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if " ours, " in line]
    return {(row[0], row[2]): (float(row[-2]), float(row[-1])) for row in rows}


@pytest.mark.parametrize("model", TARGETS)
def test_streaming_from_pinned_memory_reaches_the_links_limit(
    table: dict[tuple[str, str], tuple[float, float]], model: str
) -> None:
    ms, slots = table[model, "pinned"]
    assert ms <= TARGETS[model][0]
    assert slots <= TARGETS[model][1]


@pytest.mark.parametrize("model", TARGETS)
def test_streaming_from_pageable_memory_is_bound_by_that_memory_only(
    table: dict[tuple[str, str], tuple[float, float]], model: str
) -> None:
    """The simulated card copies pageable memory at half the link's rate."""
    assert table[model, "pageable"][0] <= 1.10 * 2 * table[model, "pinned"][0]
