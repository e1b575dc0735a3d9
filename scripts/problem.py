"""One way to fail: a sentence for people on stderr, and an exit code that is not zero."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable


class Problem(Exception):
    """Something a person can act on. The text says what went wrong, where, and what to do."""


def run(main: Callable[[], int | None]) -> None:
    """Run a command's `main` and leave the process with its exit code, or with a Problem's sentence."""
    # A plain SIGTERM would skip every `finally`, and so leave a server behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        code = main() or 0
    except Problem as problem:
        print(f"error: {problem}", file=sys.stderr)
        code = 1
    except KeyboardInterrupt:
        print("stopped by Ctrl-C", file=sys.stderr)
        code = 130
    sys.exit(code)
