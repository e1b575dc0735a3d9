"""The debug log: heard through ComfyUI's handlers as both versions set them up, and silent otherwise."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from offload_runtime import log


@contextmanager
def handlers(level: int, *found: logging.Handler) -> Iterator[None]:
    """These are the handlers of the root logger; inside of a test, because pytest adds its own to each phase."""
    root = logging.getLogger()
    before = root.handlers[:], root.level
    root.handlers[:] = found
    root.setLevel(level)
    try:
        yield
    finally:
        root.handlers[:] = before[0]
        root.setLevel(before[1])


@contextmanager
def console(level: int, *, on_handler: bool) -> Iterator[io.StringIO]:
    """Logging as ComfyUI sets it up: newer versions give the handler a level, too."""
    printed = io.StringIO()
    handler = logging.StreamHandler(printed)
    if on_handler:
        handler.setLevel(level)
    with handlers(level, handler):
        yield printed


LEVELS = [logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR]


@pytest.mark.parametrize("on_handler", [False, True], ids=["older", "newer"])
@pytest.mark.parametrize("level", LEVELS)
def test_the_environment_variable_is_enough_whatever_comfyui_prints(
    monkeypatch: pytest.MonkeyPatch, level: int, on_handler: bool
) -> None:
    monkeypatch.setenv("LAYERWISE_OFFLOAD_LOG", "Debug")
    with console(level, on_handler=on_handler) as printed:
        log.debug(lambda: "100 % of it")
    assert printed.getvalue() == "Layerwise Offload: 100 % of it\n"


@pytest.mark.parametrize("on_handler", [False, True], ids=["older", "newer"])
@pytest.mark.parametrize("level", LEVELS)
def test_without_it_only_verbose_debug_prints_and_no_line_is_made(
    monkeypatch: pytest.MonkeyPatch, level: int, on_handler: bool
) -> None:
    monkeypatch.delenv("LAYERWISE_OFFLOAD_LOG", raising=False)
    made = []
    with console(level, on_handler=on_handler) as printed:
        log.debug(lambda: made.append("a line") or "a line")  # type: ignore[func-returns-value]
    assert bool(made) == bool(printed.getvalue()) == (level == logging.DEBUG)


def test_it_is_heard_where_nobody_has_set_up_logging(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A benchmark, say."""
    monkeypatch.setenv("LAYERWISE_OFFLOAD_LOG", "debug")
    with handlers(logging.WARNING):
        log.debug(lambda: "a line")
    assert capsys.readouterr().err == "Layerwise Offload: a line\n"


def test_the_packs_logger_has_no_handler_and_no_level() -> None:
    assert not log.LOGGER.handlers
    assert log.LOGGER.level == logging.NOTSET
    assert log.LOGGER.propagate


def test_warnings_go_through_the_same_logger(caplog: pytest.LogCaptureFixture) -> None:
    log.warning("%s is left to ComfyUI: 5 %% of it", "vae")
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("layerwise_offload", logging.WARNING)
    assert record.getMessage() == "Layerwise Offload: vae is left to ComfyUI: 5 % of it"
