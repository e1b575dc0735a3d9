"""The pack's one logger, and its debug log.

The debug log is asked for by `LAYERWISE_OFFLOAD_LOG=debug` in the environment, or by ComfyUI's `--verbose DEBUG`. There
is no handler of ours: ComfyUI's prints the lines, and whatever else listens hears them too. Some ComfyUI versions give
their handler a level, past which a logger of ours could not get a line that is only worth `DEBUG`; so what the
environment asks for is said as loudly as it takes to be heard.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

LOGGER = logging.getLogger("layerwise_offload")
VARIABLE = "LAYERWISE_OFFLOAD_LOG"


def warning(message: str, *args: object) -> None:
    """Tell whoever runs ComfyUI something that they should know."""
    LOGGER.warning(f"Layerwise Offload: {message}", *args)


def information(message: str, *args: object) -> None:
    """Tell whoever runs ComfyUI what was done for them."""
    LOGGER.info(f"Layerwise Offload: {message}", *args)


def debug(line: Callable[[], str]) -> None:
    """Write a line to the debug log.

    Args:
        line: makes the line; not called where nobody wants it.
    """
    level = _level()
    if LOGGER.isEnabledFor(level):
        LOGGER.log(level, "Layerwise Offload: %s", line())


def _level() -> int:
    if os.environ.get(VARIABLE, "").strip().lower() != "debug":
        return logging.DEBUG
    return max(logging.INFO, LOGGER.getEffectiveLevel())
