"""What is told of a run while it goes on: at most ten times a second, the newest last, to who queued the prompt."""

from __future__ import annotations

import importlib
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import comfy.model_management as mm
import models
import pytest
from graphs import register
from placing import place, policy

from offload_runtime import live

FAMILY = models.FAMILIES["clip"]


@pytest.fixture
def module() -> Any:
    register()
    return sys.modules["layerwise_offload_under_test.nodes.live"]


class Loop:
    """An event loop whose clock the test moves."""

    def __init__(self) -> None:
        self.time = 0.0
        self._calls: list[tuple[float, Callable[[], None]]] = []

    def call_soon_threadsafe(self, call: Callable[[], None]) -> None:
        self.call_later(0, call)

    def call_later(self, seconds: float, call: Callable[[], None]) -> None:
        self._calls.append((self.time + seconds, call))

    def run_until(self, end: float) -> None:
        while due := sorted((when for when, _ in self._calls if when <= end)):
            self.time = max(self.time, due[0])
            call = next(one for one in self._calls if one[0] == due[0])
            self._calls.remove(call)
            call[1]()
        self.time = end

    @property
    def is_idle(self) -> bool:
        return not self._calls


@pytest.fixture
def sent(module: Any) -> tuple[Any, Loop, list[tuple[float, Any]]]:
    """Updates, the loop that sends them, and what was sent when."""
    loop, messages = Loop(), []
    updates = module.Updates(
        lambda told: messages.append((loop.time, told)), loop.call_soon_threadsafe, loop.call_later
    )
    return updates, loop, messages


def test_at_most_ten_a_second_and_the_newest_is_never_lost(sent: Any) -> None:
    updates, loop, messages = sent
    for n in range(5000):  # a second of layers of 0.2 ms
        updates.tell(lambda n=n: {"layer": n})
        loop.run_until(n * 0.0002)
    loop.run_until(3)
    times = [when for when, _ in messages]
    assert 10 <= len(times) <= 12
    assert all(after - before >= 0.0999 for before, after in pairwise(times))
    assert messages[-1][1] == {"layer": 4999}
    assert messages[0] == (0.0, {"layer": 0})
    assert loop.is_idle, "nothing goes on where nothing is told"


def test_the_first_after_a_pause_comes_at_once(sent: Any) -> None:
    updates, loop, messages = sent
    for when in (0.0, 5.0, 5.05):
        loop.run_until(when)
        updates.tell(lambda when=when: {"at": when})
    loop.run_until(6)
    assert messages == [(0.0, {"at": 0.0}), (5.0, {"at": 5.0}), (pytest.approx(5.1), {"at": 5.05})]


def test_what_is_not_sent_is_not_put_together(sent: Any) -> None:
    updates, loop, messages = sent
    made = []

    def told() -> dict[str, Any]:
        made.append(1)
        return {}

    for _ in range(1000):
        updates.tell(told)
    loop.run_until(1)
    assert len(made) == len(messages) == 1


def test_a_failure_to_send_does_not_end_it(module: Any) -> None:
    loop, sent = Loop(), []

    def send(told: dict[str, Any]) -> None:
        sent.append(told)
        if len(sent) == 1:
            raise ConnectionError

    updates = module.Updates(send, loop.call_soon_threadsafe, loop.call_later)
    updates.tell(lambda: {"layer": 1})
    with pytest.raises(ConnectionError):
        loop.run_until(0)
    updates.tell(lambda: {"layer": 2})
    loop.run_until(1)
    assert sent == [{"layer": 1}, {"layer": 2}]


def test_a_server_that_stops_ends_no_run(module: Any) -> None:
    def closed(call: Callable[[], None]) -> None:
        raise RuntimeError("Event loop is closed")

    updates = module.Updates(lambda told: None, closed, lambda seconds, call: None)
    updates.tell(dict)
    updates.tell(dict)


@pytest.mark.parametrize(("client", "heard"), [("tab", True), ("gone", False), (None, False)])
def test_only_the_browser_that_queued_the_prompt_is_told(
    module: Any, monkeypatch: pytest.MonkeyPatch, client: str | None, heard: bool
) -> None:
    loop, sent = Loop(), []
    server = SimpleNamespace(
        client_id=client,
        sockets={"tab": object(), "another": object()},
        loop=loop,
        send_sync=lambda *message: sent.append(message),
    )
    monkeypatch.setattr(module, "running_server", lambda: server)
    tree = sys.modules["layerwise_offload_under_test.offload_runtime.live"]
    try:
        module.add_live()
        tree.tell(lambda: {"doing": "computing"})
        loop.run_until(1)
    finally:
        tree.listen(None)
    expected = [("layerwise_offload.progress", {"doing": "computing"}, "tab")]
    assert sent == (expected if heard else [])


@contextmanager
def heard() -> Iterator[list[dict[str, Any]]]:
    """All that is told inside, put together at once."""
    told: list[dict[str, Any]] = []
    live.listen(lambda make: told.append(make()))
    try:
        yield told
    finally:
        live.listen(None)


@contextmanager
def prompt() -> Iterator[str]:
    name = uuid.uuid4().hex
    with importlib.import_module("comfy_execution.utils").CurrentNodeContext(name, "1"):
        yield name


def test_a_streamed_component_tells_its_load_its_layers_and_its_end(tmp_path: Path) -> None:
    placed = place(FAMILY, FAMILY.make(), policy("layerwise"), tmp_path)
    with prompt() as name, heard() as told:
        FAMILY.run(placed.value)
        row = placed.row
    mm.unload_all_models()
    assert {one["prompt_id"] for one in told} == {name}
    doing = [one.get("doing", "") for one in told]
    assert doing[0] == "loading"
    assert told[0]["bytes"] == row.bytes
    layers = [one for one in told if one.get("doing") == "streaming"]
    assert [one["layer"] for one in layers] == list(range(1, row.layer_runs + 1))
    assert {one["layers"] for one in layers} == {row.layer_runs}
    assert layers[-1]["moved"] == row.moved_bytes
    assert {one["component"] for one in layers} == {"text_encoder"}
    assert doing[-1] == "", "it is over"
    assert doing.index("computing") < doing.index("streaming")


def test_nothing_is_put_together_where_nobody_listens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise AssertionError("somebody was told")

    placed = place(FAMILY, FAMILY.make(), policy("layerwise"), tmp_path)
    monkeypatch.setattr("offload_runtime.adapter.runs.Run.told", fails)
    monkeypatch.setattr("offload_runtime.live.tell", fails)
    FAMILY.run(placed.value)
    mm.unload_all_models()
