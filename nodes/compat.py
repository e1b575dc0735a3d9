"""One source for all supported ComfyUI versions: leave out options that the running one does not know."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def known_options(factory: Callable[..., T], *args: Any, **options: Any) -> T:
    """Call a schema class with those keyword options that its signature names."""
    known = inspect.signature(factory).parameters
    return factory(*args, **{name: value for name, value in options.items() if name in known})
