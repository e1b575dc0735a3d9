"""Host memory that this process may really use: the system's, or less inside a container.

Linux control groups limit a process below what the system has, at any level of their hierarchy; both versions
of their file system are read, and both side by side. The page cache that a group holds counts as available: the
kernel gives it back. Above `memory.high` a group is slowed down until it has given back, so that is a limit, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

_UNLIMITED = 1 << 60
"""Version 1 writes a number of this size where there is no limit."""


class HostMemory(NamedTuple):
    """Host memory in bytes."""

    total: int
    available: int


def host_memory(root: Path = Path("/")) -> HostMemory:
    """Take the memory that this process may use now.

    Args:
        root: where `proc` and `sys` are mounted.
    """
    system = psutil.virtual_memory()
    total, available = int(system.total), int(system.available)
    for limit, used in _groups(root):
        total = min(total, limit)
        available = min(available, max(0, limit - used))
    return HostMemory(total, available)


def _groups(root: Path) -> Iterator[tuple[int, int]]:
    """Yield (limit, memory in use that cannot be given back) of every group that this process is in."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top = root / "sys/fs/cgroup"
            if (top / "unified").is_dir():  # beside version 1
                top /= "unified"
            limits, used, cache = ["memory.max", "memory.high"], "memory.current", ""
        elif "memory" in controllers.split(","):
            top = root / "sys/fs/cgroup/memory"
            limits, used, cache = ["memory.limit_in_bytes"], "memory.usage_in_bytes", "total_"
        else:
            continue
        # Inside a container the path is that of the host, and the container's own group is at the top.
        for folder in dict.fromkeys((top / path.lstrip("/"), *(top / path.lstrip("/")).parents)):
            if folder != top and top not in folder.parents:
                break
            found = [number for limit in limits if (number := _number(folder / limit)) is not None]
            if not found or min(found) >= _UNLIMITED:
                continue
            stat = _read(folder / "memory.stat")
            cached = re.findall(rf"^{cache}(?:in)?active_file (\d+)$", stat, re.MULTILINE)
            yield min(found), max(0, (_number(folder / used) or 0) - sum(map(int, cached)))


def _number(file: Path) -> int | None:
    text = _read(file).strip()
    return int(text) if text.isdigit() else None  # “max” is no limit


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:  # not Linux, or a level of the hierarchy that has no such file
        return ""
