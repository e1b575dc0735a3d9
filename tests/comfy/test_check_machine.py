"""What others read of the last check of this machine, for predictions: the file as it is now, or nothing."""

from __future__ import annotations

import logging
from pathlib import Path
from types import ModuleType

import pytest

from offload_runtime.policy.machine_check import FILE_NAME, MachineCheck

FOUND = MachineCheck("CPU", "cpu", disk=1e9)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    import folder_paths

    from offload_runtime.adapter import machine

    monkeypatch.setattr(folder_paths, "get_user_directory", lambda: str(tmp_path / "user"))
    monkeypatch.setattr(machine, "_last", None)
    return machine


def test_what_is_kept_is_read_and_read_anew_when_it_changes(machine: ModuleType) -> None:
    assert machine.machine_check() is None
    assert machine.keep(FOUND) == FOUND
    assert machine.machine_check() == FOUND
    assert machine.machine_check() is machine.machine_check(), "nothing is read twice"
    other = MachineCheck("CPU", "cpu", disk=2e9, page_cache=3e9)
    machine.keep(other)
    assert machine.machine_check() == other
    machine.check_file().unlink()
    assert machine.machine_check() is None


def test_a_corrupt_file_is_one_warning_and_nothing_fails(
    machine: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    machine.keep(FOUND)
    machine.check_file().write_bytes(b"{")
    with caplog.at_level(logging.WARNING):
        assert machine.machine_check() is None
        assert machine.machine_check() is None
    assert [record.getMessage() for record in caplog.records] == [
        f"Layerwise Offload: {FILE_NAME} cannot be used, because it is no JSON; run Check this machine again"
    ]


def test_a_check_of_a_card_says_nothing_of_the_cpu(machine: ModuleType) -> None:
    machine.keep(MachineCheck("Card 9000", "cuda", disk=1e9))
    assert machine.machine_check() is None


def test_where_the_result_cannot_be_kept_it_says_so(machine: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "user").write_text("in the way")
    found = machine.keep(FOUND)
    assert found.disk == FOUND.disk
    assert found.notes[-1].startswith(
        "The result was not kept for predictions, because its file cannot be written: "
    )
    assert str(tmp_path) not in found.notes[-1]


def test_predictions_take_the_link_that_was_measured(machine: ModuleType) -> None:
    assert machine.link_from("pinned") == 0
    copies = ((2**20, 1e-3), (2**28, 0.01))
    machine.keep(MachineCheck("CPU", "cpu", pinned_copies=copies, pageable_copies=copies[:1]))
    assert machine.link_from("pinned") == 2**28 / 0.01
    assert machine.link_from("staged") == 2**20 / 1e-3
    assert machine.link_from("mapped") == machine.link_from("resident") == 0
