"""The check for a real GPU: what it says where there is none, and that its parts run, on the simulated card.

In processes of their own: the benchmarks import this floor under another name.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]


def run(module: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", "-m", module]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.skipif(torch.cuda.device_count() > 0, reason="This machine has a GPU to check on.")
def test_without_a_gpu_it_says_so_in_one_sentence_and_is_content() -> None:
    done = run("bench.gpu_check")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"Nothing was checked: torch {torch.__version__} sees no NVIDIA GPU on this machine."
    ]


def test_its_claims_hold_on_the_simulated_card() -> None:
    done = run("bench.gpu_rehearsal")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ok    streamed and resident give the same bits: equal: True" in done.stdout
    assert "FAILS" not in done.stdout
