"""Weights written to a safetensors file of ours, to be read from there like those of any model file."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch

from .weight_file import DTYPES, bytes_of

_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_CHUNK = 1 << 24

Step = Callable[[int], None]
"""Told how many more bytes are done; what it raises ends the work, and nothing is left of it."""


def can_store(weight: torch.Tensor) -> bool:
    """Tell whether a weight in memory can be written as it is."""
    return weight.dtype in _NAMES and weight.is_contiguous() and weight.is_cpu


def digest(weights: Mapping[str, torch.Tensor], step: Step) -> str:
    """Return what two sets of weights have alike when their names, shapes and bytes are the same.

    Args:
        weights: name → what can be stored.
        step: told of the progress.
    """
    found = hashlib.blake2b(_header(weights), digest_size=16)
    for chunk in _chunks(weights):
        found.update(chunk)
        step(len(chunk))
    return found.hexdigest()


def write(file: Path, weights: Mapping[str, torch.Tensor], step: Step) -> None:
    """Write weights to a file, which is there whole or not at all.

    Args:
        file: where to; what was there is replaced.
        weights: name → what can be stored.
        step: told of the progress.

    Raises:
        OSError: it cannot be written.
    """
    unfinished = file.with_suffix(".unfinished")
    header = _header(weights)
    try:
        with unfinished.open("wb") as out:
            out.write(len(header).to_bytes(8, "little") + header)
            for chunk in _chunks(weights):
                out.write(chunk)
                step(len(chunk))
            out.flush()
            os.fsync(out.fileno())
        os.replace(unfinished, file)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise
    _keep_name(file.parent)


def _order(weights: Mapping[str, torch.Tensor]) -> list[str]:
    """Return the names in the order of the file: wide values first, so that each begins where it can be mapped."""
    return sorted(weights, key=lambda name: (-weights[name].itemsize, name))


def _chunks(weights: Mapping[str, torch.Tensor]) -> Iterator[memoryview]:
    """Yield all bytes in the order of the file."""
    for name in _order(weights):
        data = bytes_of(weights[name])
        for start in range(0, len(data), _CHUNK):
            yield data[start : start + _CHUNK]


def _header(weights: Mapping[str, torch.Tensor]) -> bytes:
    entries, end = {}, 0
    for name in _order(weights):
        weight = weights[name]
        start, end = end, end + weight.nbytes
        entries[name] = {
            "dtype": _NAMES[weight.dtype],
            "shape": list(weight.shape),
            "data_offsets": [start, end],
        }
    header = json.dumps(entries).encode()
    return header + b" " * (-len(header) % 8)


def _keep_name(folder: Path) -> None:
    """Let a new name in a folder outlast a power cut, where the system can be asked to."""
    with contextlib.suppress(OSError):
        there = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(there)
        finally:
            os.close(there)
