"""The engine's benchmark: simulated, so its figures are the same every time, and are held to their targets.

In processes of their own: the benchmarks import this floor under another name.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]

#: Model → milliseconds of the second run from pinned memory, and megabytes of slots, at most.
TARGETS = {
    "clip_l": (7.1, 30),
    "siglip": (33.8, 65),
    "t5xxl": (376, 800),
    "qwen7b": (530, 940),
    "reverse": (112, 460),
}

#: A video decoder that runs its layers again and again. The benchmark's own table has 20 passes.
PASSES = 3

#: Model → milliseconds of ComfyUI's own use, a first one or not: it copies what runs.
CORE = {"t5xxl": 392, "qwen7b": 583, "reverse": 115}

PINNED, PAGEABLE = True, False
FIRST = "first"
CASES = [
    *((model, "own choice", PINNED, None, FIRST) for model in CORE),
    *((model, "own choice", PAGEABLE, None, FIRST) for model in CORE),
    ("video_vae", "own choice", PINNED, PASSES, FIRST),
    *((model, "own choice", PINNED, None) for model in (*TARGETS, "kl_vae")),
    *((model, "own choice", PAGEABLE, None) for model in ("clip_l", "t5xxl", "reverse", "kl_vae")),
    *((model, "half resident", PINNED, None) for model in ("clip_l", "t5xxl")),
    *((model, "half resident", PAGEABLE, None) for model in ("clip_l", "t5xxl")),
    *((model, "two weights", PINNED, None) for model in ("t5xxl", "reverse")),
    ("video_vae", "own choice", PINNED, PASSES),
]

DRIVER = """
import json, sys
from bench.engine_cases import Case, bound, run, work_of
cases = [Case(model, "rtx4090", *how[:3], "first" in how) for model, *how in json.loads(sys.argv[1])]
works = {model: work_of(model, "rtx4090") for model in {c.model for c in cases if c.passes is None}}
results = [vars(run(c)) | ({"bound": bound(c, works[c.model])} if c.model in works else {}) for c in cases]
print(json.dumps({"results": results, "resident": {model: work.resident_ms for model, work in works.items()}}))
"""

Results = dict[tuple[Any, ...], dict[str, float]]


def command(*arguments: str) -> str:
    """Run Python in the root of the repository, and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *arguments],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def figures() -> dict[str, Any]:
    return json.loads(command("-c", DRIVER, json.dumps(CASES)))


@pytest.fixture(scope="module")
def results(figures: dict[str, Any]) -> Results:
    return {(*case[:3], *case[4:]): result for case, result in zip(CASES, figures["results"], strict=True)}


@pytest.mark.parametrize("model", TARGETS)
def test_streaming_from_pinned_memory_reaches_the_links_limit(results: Results, model: str) -> None:
    got = results[model, "own choice", PINNED]
    assert got["ms"] <= TARGETS[model][0]
    assert got["layers"] <= TARGETS[model][1]


@pytest.mark.parametrize("pinned", [PINNED, PAGEABLE], ids=["pinned", "pageable"])
@pytest.mark.parametrize("model", CORE)
def test_the_first_use_is_as_fast_as_the_second(results: Results, model: str, *, pinned: bool) -> None:
    """Nobody has said in which order the layers and their operations run, and registration order is another one."""
    got = results[model, "own choice", pinned, FIRST]
    assert got["ms"] <= 1.02 * got["bound"] + 3
    assert not pinned or got["ms"] <= 1.1 * CORE[model]


def test_the_first_use_of_a_loop_is_as_fast_as_the_second(results: Results) -> None:
    case = "video_vae", "own choice", PINNED
    assert results[(*case, FIRST)]["ms"] <= 1.02 * results[case]["ms"]


def test_copies_hide_behind_the_image_decoder(figures: dict[str, Any], results: Results) -> None:
    """The baseline's decoder took 86.8 ms resident, and 87.5 were to be reached; this one computes 4 ms longer."""
    assert results["kl_vae", "own choice", PINNED]["ms"] <= 87.5 / 86.8 * figures["resident"]["kl_vae"]


def test_a_looped_decoder_streams_at_the_links_rate(results: Results) -> None:
    got = results["video_vae", "own choice", PINNED]
    assert got["ms"] <= 1.02 * got["copied"] / 25  # MB per ms
    assert got["copied"] <= 36 * 127.5 * PASSES


@pytest.mark.parametrize(
    "case", [case for case in CASES if not case[2] and FIRST not in case], ids=lambda case: "-".join(case[:2])
)
def test_pageable_memory_is_streamed_as_fast_as_it_can_be_read(
    results: Results, case: tuple[str, str, bool]
) -> None:
    """The simulated card copies it at half the link's rate."""
    got = results[case[:3]]
    assert got["ms"] <= 1.10 * got["bound"]


@pytest.mark.parametrize("model", ["clip_l", "t5xxl"])
def test_half_of_the_layers_resident_halves_the_time(results: Results, model: str) -> None:
    half, streamed = (results[model, budget, PINNED]["ms"] for budget in ("half resident", "own choice"))
    assert half <= 0.53 * streamed


@pytest.mark.parametrize("model", ["t5xxl", "reverse"])
def test_less_memory_than_two_layers_costs_next_to_no_time(results: Results, model: str) -> None:
    got = results[model, "two weights", PINNED]
    largest = {"t5xxl": 4096 * 10240 * 2, "reverse": 3072 * 12288 * 2}[model] / 1e6
    assert got["layers"] <= 2 * largest + 64
    assert got["ms"] <= 1.08 * got["bound"]


@pytest.mark.parametrize(
    ("model", "bound"), [("clip_l", 6.9), ("siglip", 33.1), ("t5xxl", 372), ("qwen7b", 524)]
)
def test_the_bound_is_the_published_one(results: Results, model: str, bound: float) -> None:
    """That one copies whole layers, and is rounded."""
    assert results[model, "own choice", PINNED]["bound"] == pytest.approx(bound, rel=0.015)


def test_the_engine_counts_its_memory_as_the_card_does(results: Results) -> None:
    beside = 32128 * 4096 * 2 / 1e6  # T5's token table
    for budget in ("own choice", "half resident", "two weights"):
        got = results["t5xxl", budget, PINNED]
        assert got["layers"] + beside == pytest.approx(got["weights"], rel=0.001)


def test_the_table_names_every_budget_and_peer_with_its_source() -> None:
    table = command("-m", "bench.engine", "kl_vae", "--profile", "h200", "--peers", "published")
    rows = [row for row in table.splitlines() if row.startswith("  ")]
    assert sum(row.startswith("  ours") for row in rows) == 8
    assert sum(row.startswith("  SGLang") and row.endswith("published") for row in rows) == 2


def test_the_cost_of_a_call_is_measured() -> None:
    rows = command("-m", "bench.call_cost", "1").splitlines()
    assert sum(row.startswith("ours") for row in rows) == 5
