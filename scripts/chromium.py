"""Find a Chromium for the browser tests, and install Debian's where that is possible. Standard library only.

Playwright's own browsers come from a server that is not a package index, so an installed one is used.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from .problem import Problem

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
HOW_TO_INSTALL = (
    "the browser tests need Chromium or Chrome and found none; install one (on Debian: `apt install chromium`), "
    "or set CHROMIUM to its executable."
)
APT = (("apt-get", "update"), ("apt-get", "install", "--yes", "--no-install-recommends", "chromium"))


def locate() -> Path | None:
    """The executable in `CHROMIUM`, or the first known name on the PATH, or None.

    Raises:
        Problem: `CHROMIUM` names something that cannot be run.
    """
    asked = os.environ.get("CHROMIUM")
    if asked:
        found = shutil.which(asked)
        if found is None:
            raise Problem(f"CHROMIUM is {asked}, which is no executable; name one, or unset it.")
        return Path(found)
    return next((Path(path) for name in NAMES if (path := shutil.which(name))), None)


def require() -> Path:
    """The executable, or a Problem that says how to get one."""
    found = locate()
    if found is None:
        raise Problem(HOW_TO_INSTALL)
    return found


def can_install() -> bool:
    """Whether we are root on Debian. Ubuntu's package of that name only starts a snap, which needs a service."""
    if os.name == "nt" or os.geteuid() != 0 or shutil.which("apt-get") is None:
        return False
    release = Path("/etc/os-release")
    return release.is_file() and "ID=debian" in release.read_text(encoding="utf-8").splitlines()


def install() -> None:
    """Install Debian's Chromium. Raises a Problem with apt's last line when that fails."""
    for command in APT:
        done = subprocess.run(
            command,
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        if done.returncode != 0:
            said = (done.stderr or done.stdout).strip().splitlines() or ["nothing"]
            raise Problem(f"installing Chromium failed: `{' '.join(command)}` says “{said[-1]}”.")
