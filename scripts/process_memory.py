"""What the system itself counts of the memory of this process; Linux only."""

from __future__ import annotations

import re
from pathlib import Path


def mapped_ranges(file: Path) -> list[range]:
    """Return the addresses at which a file is mapped."""
    return [addresses for addresses, _ in _mappings(file)]


def private_bytes(file: Path) -> int:
    """Return the memory that copies of a mapped file's pages take, those that somebody has written to."""
    return sum(count for _, count in _mappings(file))


def read_by_this_process() -> int:
    """Return the bytes that this process has read until now, from the disk or not, and `/proc` included."""
    return int(re.findall(r"(?m)^rchar: (\d+)", Path("/proc/self/io").read_text())[0])


def _mappings(file: Path) -> list[tuple[range, int]]:
    found: list[tuple[range, int]] = []
    for part in re.split(r"(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text()):
        head, *lines = part.splitlines() or [""]
        if head.split(None, 5)[5:] == [str(file)]:
            start, end = (int(address, 16) for address in head.split(None, 1)[0].split("-"))
            counts = re.findall(r"(?m)^(?:Anonymous|Swap):\s+(\d+) kB", "\n".join(lines))
            found.append((range(start, end), sum(map(int, counts)) * 1024))
    return found
