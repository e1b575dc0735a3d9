"""How large the weights in a model file are, read from its header alone."""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from .weight_file import MAX_HEADER

_HEADED = (".safetensors", ".sft")


class FileSizes(NamedTuple):
    """The weights in a file, in bytes.

    Attributes:
        total: all of them; the size of the file where nothing tells.
        parts: prefix of their names → those; without those that are not there.
    """

    total: int
    parts: Mapping[str, int]


def file_sizes(path: Path, prefixes: tuple[str, ...] = ()) -> FileSizes | None:
    """Return the sizes of the weights in a file, or None where there is no such file.

    The header of a safetensors file is read once, and again when the file has changed. Other formats do not tell
    without being read: the file's size is what it is.

    Args:
        path: the file.
        prefixes: of which weights the sizes are wanted apart.
    """
    try:
        found = path.stat()
    except OSError:
        return None
    return _read(path, found.st_mtime_ns, found.st_size, prefixes)


@functools.lru_cache(maxsize=512)
def _read(path: Path, modified: int, size: int, prefixes: tuple[str, ...]) -> FileSizes:
    if path.suffix.lower() in _HEADED:
        try:
            return _from_header(path, size, prefixes)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            pass  # what is no such file inside, ComfyUI will refuse
    return FileSizes(size, {})


def _from_header(path: Path, size: int, prefixes: tuple[str, ...]) -> FileSizes:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > min(MAX_HEADER, size - 8):
            raise ValueError("a header longer than the file")
        entries = json.loads(file.read(length))
    total, parts = 0, Counter[str]()
    for name, entry in entries.items():
        if name == "__metadata__":
            continue
        start, end = map(int, entry["data_offsets"])
        total += end - start
        prefix = next((prefix for prefix in prefixes if name.startswith(prefix)), None)
        if prefix is not None:
            parts[prefix] += end - start
    if not 0 <= total <= size:
        raise ValueError("more weights than the file has bytes")
    return FileSizes(total, dict(parts))
