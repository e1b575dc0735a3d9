"""*Check this machine* on the simulated card: what it measures is what the card is set to, and nothing is left."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from offload_runtime.check import Extent, Ground, check_machine, measure
from offload_runtime.engine.check import Geometry, Pins, equality
from offload_runtime.policy.machine_check import MachineCheck

from . import Accelerator
from .comfyui import ComfyUI
from .profile import PROFILES
from .timeline import COMPUTE, TO_DEVICE

MB = 1 << 20
STACK = Geometry(1024, 8, 2048, 6, 64, gated=True, bias=False)
FAST = Extent(small=MB, large=256 * MB, file=16 * MB, side=2048, width=32, stacks=())
NUMBERS = Extent(small=MB // 4, large=4 * MB, file=16 * MB, side=64, width=32, stacks=(STACK,))
"""With numbers in it, so little of all."""


class Stop(BaseException):
    """As ComfyUI's interrupt."""


def check(
    sim: Accelerator, folder: Path, extent: Extent, progress: Callable[[float, str], None] | None = None
) -> MachineCheck:
    ground = Ground(sim.device, folder, Pins(sim.pin))
    return check_machine(ground, progress or (lambda done, name: None), extent)


def leaves_nothing(sim: Accelerator, folder: Path) -> bool:
    assert (sim.memory.live, sim.pinned) == (0, 0), sim.memory.report()
    assert sim.memory.reserved == 0
    return list(folder.iterdir()) == []


@pytest.fixture(autouse=True)
def _much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """How much of the largest copies there is room for is not what is tested."""
    memory = psutil.virtual_memory()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory._replace(available=64 << 30))


@pytest.mark.parametrize("name", ["rtx4090", "h200", "rtx3060"])
def test_speeds_and_overlap_are_those_of_the_card(name: str, tmp_path: Path) -> None:
    profile = PROFILES[name]
    with Accelerator(profile, shapes=True) as sim:
        found = check(sim, tmp_path, FAST)
        assert found.link_pinned == pytest.approx(profile.link, rel=0.02)
        assert found.link_pageable == pytest.approx(profile.link * profile.pageable_factor, rel=0.02)
        assert found.copy_latency == pytest.approx(profile.copy_us / 1e6, rel=0.05)
        sizes = [size for size, _ in found.pinned_copies]
        assert sizes == [MB, 4 * MB, 16 * MB, 64 * MB, 256 * MB]
        assert found.overlap == pytest.approx(1, abs=0.02)
        assert found.overlap_staged == pytest.approx(1, abs=0.02)
        assert (found.device, found.device_bytes) == (f"Simulated {name}", profile.total_memory)
        assert leaves_nothing(sim, tmp_path)


@pytest.mark.card(shapes=True)
def test_where_copies_and_kernels_do_not_run_beside_each_other_no_overlap_is_found(
    sim: Accelerator, tmp_path: Path
) -> None:
    """What the card's own copy engine makes possible, a card without one does not."""
    lanes = sim._runtime.machine._lanes
    lanes[TO_DEVICE] = lanes[COMPUTE]
    found = check(sim, tmp_path, FAST)
    assert found.overlap == pytest.approx(0, abs=0.1)


@pytest.mark.card(cap=1 << 30)
def test_layers_of_all_kinds_are_the_same_bit_for_bit_and_the_claims_hold(
    sim: Accelerator, tmp_path: Path
) -> None:
    found = check(sim, tmp_path, NUMBERS)
    assert found.notes == ()
    claims = [verdict.claim for verdict in found.verdicts]
    assert claims[:5] == [
        "streamed equals resident, from pinned memory",
        "streamed equals resident, from pinned memory in parts",
        "streamed equals resident, from pinned memory without look-ahead",
        "streamed equals resident, from pageable memory",
        "streamed equals resident, from a file",
    ]
    assert len(claims) == 11
    assert [v for v in found.verdicts if not v.holds] == []
    assert all("15 layers, 3 uses" in verdict.found for verdict in found.verdicts[:5])
    assert leaves_nothing(sim, tmp_path)


def steps_of(sim: Accelerator, folder: Path, extent: Extent) -> int:
    told: list[float] = []
    check(sim, folder, extent, lambda done, name: told.append(done))
    assert told == sorted(told)
    return len(told)


@pytest.mark.card(cap=1 << 30)
def test_an_interrupt_at_any_step_leaves_nothing(sim: Accelerator, tmp_path: Path) -> None:
    small = replace(NUMBERS, stacks=(Geometry(64, 4, 128, 3, 8, gated=True, bias=False),))
    count = steps_of(sim, tmp_path, small)
    assert count > 30
    for stop in range(0, count, 3):
        told = iter(range(count))

        def progress(done: float, name: str, told: Any = told, stop: int = stop) -> None:
            if next(told) == stop:
                raise Stop

        with pytest.raises(Stop) as caught:
            check(sim, tmp_path, small, progress)
        assert leaves_nothing(sim, tmp_path), f"step {stop} of {count}, and {caught} is still held"


@pytest.mark.card(cap=40 * MB)
def test_a_card_without_room_gets_less_and_the_report_says_so(sim: Accelerator, tmp_path: Path) -> None:
    smaller = Geometry(256, 8, 512, 6, 64, gated=True, bias=False)
    extent = replace(NUMBERS, large=64 * MB, stacks=(STACK, smaller))
    found = check(sim, tmp_path, extent)
    assert found.pinned_copies[-1][0] == 16 * MB
    assert "There was no room for 64 MB, so 16 MB was used." in found.notes
    assert any(note.startswith("There was no room for a stack of ") for note in found.notes)
    assert found.verdicts[5].claim == "streamed and resident give the same bits"
    assert found.verdicts[5].holds
    assert leaves_nothing(sim, tmp_path)


@pytest.mark.card(cap=1000)
def test_a_card_that_is_full_is_said_to_be(sim: Accelerator, tmp_path: Path) -> None:
    found = check(sim, tmp_path, NUMBERS)
    assert found.verdicts == ()
    assert found.notes == (
        "The link was not measured, because the device has no room for 256 KB.",
        "Streamed layers were not compared, because the device has no room for them.",
        "The claims about speed were not checked, because no memory can be pinned here.",
    )
    assert found.page_cache
    assert leaves_nothing(sim, tmp_path)


def test_where_nothing_can_be_pinned_the_rest_is_measured(sim: Accelerator, tmp_path: Path) -> None:
    sim.pin_limit = 0
    found = check(sim, tmp_path, NUMBERS)
    assert (found.link_pinned, found.overlap) == (None, None)
    assert found.link_pageable
    assert "Pinned memory was not measured, because none can be pinned here." in found.notes
    assert found.verdicts[0].found == "yes: 15 layers, 3 uses, from memory that could not be pinned"
    assert found.holds
    assert leaves_nothing(sim, tmp_path)


def test_what_breaks_is_a_verdict_or_a_note_and_the_rest_is_measured(
    sim: Accelerator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a driver's words")

    for name in ("copy_to_device", "disk_speed"):
        monkeypatch.setattr(measure, name, broken)
    monkeypatch.setattr(equality, "FileTier", broken)
    found = check(sim, tmp_path, replace(NUMBERS, stacks=()))
    why = "it failed with RuntimeError, see the console"
    assert f"Not all of disk was measured: {why}." in found.notes
    assert f"Not all of the link was measured: {why}." in found.notes
    assert [verdict.holds for verdict in found.verdicts] == [True, True, True, True, False]
    assert found.verdicts[-1].claim == "streamed equals resident"
    assert found.verdicts[-1].found == f"no: {why}"
    assert "a driver's words" in caplog.text
    assert "driver" not in found.to_json()
    assert found.memory
    assert leaves_nothing(sim, tmp_path)


def test_a_full_disk_costs_the_comparison_with_a_file_only(
    sim: Accelerator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(equality, "write", full)
    found = check(sim, tmp_path, replace(NUMBERS, stacks=()))
    assert len(found.verdicts) == 4
    assert found.holds
    assert "Not all of streamed layers was measured: No space left on device." in found.notes
    assert leaves_nothing(sim, tmp_path)


# In ComfyUI ---------------------------------------------------------------------------------------


@pytest.fixture
def machine(comfy: ComfyUI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The adapter's part, with folders of its own."""
    import folder_paths

    from offload_runtime.adapter import machine

    for name, ask in (("user", "get_user_directory"), ("temp", "get_temp_directory")):
        (tmp_path / name).mkdir()
        monkeypatch.setattr(folder_paths, ask, lambda name=name: str(tmp_path / name))
    monkeypatch.setattr(machine, "_last", None)
    return machine


@pytest.mark.usefixtures("_inference_mode")
@pytest.mark.parametrize("dynamic", [False, True], ids=["legacy", "dynamic"])
def test_in_comfyui_its_device_its_pins_and_its_folders_are_used(
    dynamic: bool, comfy: ComfyUI, machine: Any, tmp_path: Path
) -> None:
    if dynamic and not comfy.has_dynamic:
        pytest.skip("This ComfyUI has no dynamic VRAM.")
    if dynamic:
        comfy.enable_dynamic()
    comfy.sim.cap = 4 << 30
    live, pinned = comfy.sim.memory.live, comfy.mm.TOTAL_PINNED_MEMORY
    found = machine.keep(machine.check_this_machine(extent=NUMBERS))
    assert [v for v in found.verdicts if not v.holds] == []
    assert len(found.verdicts) == 11
    assert found.link_pinned
    assert found.comfyui == "" or found.comfyui[0].isdigit()
    assert (comfy.sim.memory.live, comfy.mm.TOTAL_PINNED_MEMORY) == (live, pinned)
    assert os.listdir(tmp_path / "temp") == []
    assert machine.machine_check() == found


@pytest.mark.usefixtures("_inference_mode")
def test_comfyuis_interrupt_ends_it_half_way(comfy: ComfyUI, machine: Any, tmp_path: Path) -> None:
    comfy.sim.cap = 4 << 30
    live, pinned = comfy.sim.memory.live, comfy.mm.TOTAL_PINNED_MEMORY

    def interrupt(done: float, name: str) -> None:
        if name == "streamed layers":
            comfy.mm.interrupt_current_processing(True)

    start = time.monotonic()
    with pytest.raises(comfy.mm.InterruptProcessingException):
        machine.check_this_machine(interrupt, NUMBERS)
    assert time.monotonic() - start < 30
    assert (comfy.sim.memory.live, comfy.mm.TOTAL_PINNED_MEMORY) == (live, pinned)
    assert os.listdir(tmp_path / "temp") == []
    assert machine.machine_check() is None


@pytest.mark.usefixtures("_inference_mode")
def test_a_check_of_another_card_predicts_nothing(comfy: ComfyUI, machine: Any) -> None:
    other = MachineCheck("Simulated h200", torch.device("sim").type)
    machine.keep(other)
    assert machine.machine_check() is None
    ours = replace(other, device="Simulated rtx4090")
    machine.keep(ours)
    assert machine.machine_check() == ours
