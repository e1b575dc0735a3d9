"""The file of what was learnt: shared by servers, never torn, and never a reason to fail."""

from __future__ import annotations

import logging
import multiprocessing
import os
from pathlib import Path

import pytest

from offload_runtime.policy import learnt_store
from offload_runtime.policy.learnt import Learnt, Lesson
from offload_runtime.policy.learnt_file import from_text
from offload_runtime.policy.learnt_store import LearntStore
from offload_runtime.policy.margin import Margin


def lessons(*names: str, at: float = 1.0) -> Learnt:
    return Learnt({name: Lesson(at, 100) for name in names})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "user" / "learned" / "runs.json"


def test_what_is_added_is_there_for_the_next_server(path: Path) -> None:
    assert LearntStore(path).read() == Learnt()
    assert not path.parent.exists(), "nothing is made to read"
    LearntStore(path).add(lessons("a"))
    one, two = LearntStore(path), LearntStore(path)
    one.add(lessons("b"))
    assert set(two.read().models) == {"a", "b"}
    two.add(Learnt(margins={"w": Margin(2.0, 5, "vae")}))
    assert one.read().margins["w"].bytes == 5, "what another one wrote is seen"
    assert [p.name for p in path.parent.iterdir()] == [path.name], "no lock, and nothing unfinished"


def test_it_may_be_deleted_at_any_time(path: Path) -> None:
    store = LearntStore(path)
    store.add(lessons("a"))
    path.unlink()
    assert store.read() == Learnt()
    store.add(lessons("b"))
    assert set(store.read().models) == {"b"}


def write_many(path: Path, who: int) -> None:
    store = LearntStore(path)
    for number in range(20):
        store.add(lessons(f"{who}.{number}", "both", at=float(number)))


def test_two_servers_that_write_at_the_same_time_lose_nothing(path: Path) -> None:
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=write_many, args=(path, who)) for who in range(2)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        if path.exists():
            from_text(path.read_text())  # whole whenever anybody looks
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    kept = LearntStore(path).read().models
    assert set(kept) == {f"{who}.{number}" for who in range(2) for number in range(20)} | {"both"}
    assert kept["both"].at == 19


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b"[" * 100_000, b" " * ((4 << 20) + 1)])
def test_a_corrupt_one_is_set_aside_with_one_warning(
    path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    store = LearntStore(path)
    assert store.read() == Learnt()
    store.add(lessons("a"))
    assert set(LearntStore(path).read().models) == {"a"}
    (said,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "cannot be read" in said.getMessage()
    assert path.with_suffix(".unreadable").read_bytes() == content


@pytest.mark.parametrize("fails", ["mkdir", "replace"])
def test_a_folder_that_cannot_be_written_to_costs_one_line(
    path: Path, fails: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    LearntStore(path).add(lessons("a"))

    def refuses(*args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path if fails == "mkdir" else os, fails, refuses)
    caplog.set_level(logging.INFO)
    store = LearntStore(path)
    for name in ("b", "c"):
        assert set(store.add(lessons(name)).models) <= {"a", "b"}
    assert set(store.read().models) >= {"a"}, "what is there is used"
    (said,) = caplog.records
    assert "nothing is learnt" in said.getMessage()
    assert "Permission denied" in said.getMessage()
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_who_cannot_get_the_lock_writes_nothing_and_who_left_it_behind_is_forgotten(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learnt_store, "_PATIENCE", 0.02)
    store = LearntStore(path)
    store.add(lessons("a"))
    lock = path.with_suffix(".lock")
    lock.touch()
    store.add(lessons("b"))
    assert set(LearntStore(path).read().models) == {"a"}
    os.utime(lock, (0, 0))
    store.add(lessons("c"))
    assert set(LearntStore(path).read().models) == {"a", "c"}
    assert not lock.exists()
