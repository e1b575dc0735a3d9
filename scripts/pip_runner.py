"""Run pip so that a failure is one sentence and the whole story is in a log file. Standard library only."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from pathlib import Path

from .places import cache, shown
from .problem import Problem

# What pip says, and what it means to a person. First match wins.
CAUSES = [
    (
        r"No space left on device|\[Errno 28\]|not enough space on the disk",
        "the disk is full; free some space",
    ),
    (
        r"NewConnectionError|Failed to establish a new conn|Name or service not known|getaddrinfo failed|"
        r"Temporary failure in name resolution|ConnectionError|ConnectTimeout|ReadTimeout|ProxyError|"
        r"Max retries exceeded|Connection refused|Network is unreachable|connection broken",
        "the package index cannot be reached; check the network, or pip's index and proxy settings",
    ),
    (
        r"No matching distribution found|Could not find a version|Requires-Python",
        f"the index has no build for Python {platform.python_version()} on {platform.platform(terse=True)}; "
        "Python 3.11 is the tested one",
    ),
    (r"[Pp]ermission denied", "a folder is not writable; check its owner and permissions"),
]


def pip(python: Path, arguments: list[str], what: str) -> None:
    """Run `python -m pip <arguments>`; raise a Problem that names the cause and the log when it fails."""
    cache().mkdir(parents=True, exist_ok=True)
    log = cache() / "pip.log"
    log.unlink(missing_ok=True)
    command = [str(python), "-m", "pip", *arguments, "--log", str(log), "--no-input"]
    shows_progress = sys.stdout.isatty()
    done = subprocess.run(
        command,
        stdout=None if shows_progress else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode == 0:
        return
    raise Problem(
        f"{what} failed: {cause_of(done.stderr + _tail(log))}. Then run the same command again; "
        f"pip's full log is {shown(log)}."
    )


def cause_of(output: str) -> str:
    """The likeliest cause of a pip failure, as the middle of a sentence."""
    for pattern, cause in CAUSES:
        if re.search(pattern, output):
            return cause
    errors = [line.strip() for line in output.splitlines() if "ERROR" in line]
    return f"pip says “{errors[-1] if errors else 'nothing'}”"


def _tail(log: Path, size: int = 20_000) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-size:] if log.exists() else ""
