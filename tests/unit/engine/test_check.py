"""What a check shows on a CPU: reads of a file, layers compared bit for bit, and no rest on the disk."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from offload_runtime.check import Extent, Ground, check_machine, load, save
from offload_runtime.engine.check import Kinds, Pins, disk_speed, kinds_on, mapped_equals_resident
from offload_runtime.policy.machine_check import MachineCheck

CPU = torch.device("cpu")
MB = 1 << 20
SMALL = Extent(small=MB, large=4 * MB, file=16 * MB, side=64, width=16)


def nothing() -> None:
    """A step that nobody waits for."""


def ground(folder: Path) -> Ground:
    return Ground(CPU, folder, Pins(lambda block: False))


class Stop(BaseException):
    """As ComfyUI's interrupt."""


def stop_at(number: int) -> Callable[[float, str], None]:
    told = iter(range(10_000))

    def progress(done: float, name: str) -> None:
        if next(told) == number:
            raise Stop

    return progress


def test_on_a_cpu_its_own_part_is_measured_and_the_rest_has_a_reason(tmp_path: Path) -> None:
    told: list[float] = []
    found = check_machine(ground(tmp_path), lambda done, name: told.append(done), SMALL)
    assert found.kind == "cpu"
    assert found.page_cache
    assert found.memory
    assert found.link_pinned is None
    assert [v.claim for v in found.verdicts] == ["streamed equals resident, from a file"]
    assert found.holds
    assert found.verdicts[0].found.startswith("yes: ")
    assert any("because the CPU computes here" in note for note in found.notes)
    assert told == sorted(told)
    assert (told[0], told[-1]) == (0.0, 1.0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [0, 3, 8, 10, 11, 12])
def test_an_interrupt_ends_it_and_leaves_no_file(tmp_path: Path, number: int) -> None:
    with pytest.raises(Stop):
        check_machine(ground(tmp_path), stop_at(number), SMALL)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_that_is_an_ordinary_exception_ends_it_too(tmp_path: Path) -> None:
    """In some versions of ComfyUI it is one."""

    def progress(done: float, name: str) -> None:
        if name == "layers from their file":
            raise RuntimeError("interrupted")

    with pytest.raises(RuntimeError, match="interrupted"):
        check_machine(ground(tmp_path), progress, SMALL)


def test_a_full_disk_takes_a_smaller_file_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync

    def full(number: int) -> None:
        if os.fstat(number).st_size > 20 * MB:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(number)

    monkeypatch.setattr(os, "fsync", full)
    found = check_machine(
        ground(tmp_path), lambda done, name: None, Extent(file=64 * MB, large=4 * MB, width=16)
    )
    assert found.page_cache
    assert "The disk has no room for a file of 64 MB, so one of 16 MB was used." in found.notes
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("default")
def test_a_folder_that_cannot_be_written_to_is_a_sentence_without_its_name(tmp_path: Path) -> None:
    found = check_machine(ground(tmp_path / "nowhere"), lambda done, name: None, SMALL)
    assert "Not all of disk was measured: No such file or directory." in found.notes
    assert "nowhere" not in found.to_json()
    assert found.memory


def test_a_disk_that_cannot_be_told_from_memory_is_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "posix_fadvise", raising=False)
    reads = disk_speed(tmp_path, 16 * MB, nothing)
    assert reads.disk is None
    assert reads.cached > 0


def test_a_device_that_torch_cannot_time_is_not_measured_and_the_host_is(tmp_path: Path) -> None:
    outside = Ground(torch.device("meta"), tmp_path, Pins(lambda block: False))
    found = check_machine(outside, lambda done, name: None, SMALL)
    assert "Copies to the device were not measured, because torch has no streams for meta." in found.notes
    assert (found.device, found.device_bytes, found.verdicts) == ("meta", 0, ())
    assert found.memory


class Telling(nn.Module):
    """A layer that computes with its own weight something else than with a copy of it."""

    def __init__(self, *, counts: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64), requires_grad=False)
        self.own = [id(self.weight)]
        self.calls: list[int] | None = [] if counts else None

    def __deepcopy__(self, memo: Any) -> Telling:
        twin = Telling(counts=self.calls is not None)
        return twin

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add 1, or 2 where it is found out."""
        if self.calls is not None:
            self.calls.append(1)
            return x + len(self.calls)
        return x + (1 if id(self.weight) in self.own else 2)


def with_telling(layer: nn.Module) -> Kinds:
    kinds = kinds_on(CPU, 16)
    kinds.layers[4] = layer
    return kinds


def test_the_first_layer_that_differs_is_named(tmp_path: Path) -> None:
    kinds = with_telling(Telling())
    check = mapped_equals_resident(kinds, tmp_path, nothing)[0]
    assert check == ("streamed equals resident, from a file", f"no: {kinds.names[4]} differs in use 1", False)


def test_a_device_that_does_not_repeat_itself_is_not_blamed_on_streaming(tmp_path: Path) -> None:
    kinds = with_telling(Telling(counts=True))
    check = mapped_equals_resident(kinds, tmp_path, nothing)[0]
    assert not check.holds
    assert check.claim == "the device repeats its results bit for bit"
    assert kinds.names[4] in check.found


def test_a_result_replaces_the_one_before_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "user" / "machine.json"
    assert load(file) is None
    save(file, MachineCheck("one", "cpu"))
    save(file, MachineCheck("two", "cpu"))
    assert load(file) == MachineCheck("two", "cpu")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        save(file, MachineCheck("three", "cpu"))
    assert load(file) == MachineCheck("two", "cpu")
    assert [path.name for path in file.parent.iterdir()] == ["machine.json"]
