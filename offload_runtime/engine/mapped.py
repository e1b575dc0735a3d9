"""Weights whose master is their safetensors file.

A loader copies every weight from the file into anonymous memory, which the kernel can only swap. Where a
weight's bytes equal those of a tensor in the file, the copy is given up and the same Parameter object views
the file's pages instead (a private mapping: a write stays in memory and never reaches the file). The kernel
can then drop the pages at any time, so that a model larger than memory runs.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from . import pages
from .slots import why_unmovable

_Key = tuple[torch.dtype, torch.Size]


class MappedWeights:
    """The weights of one model that view a file, and the way back."""

    def __init__(self) -> None:
        self._masters: dict[
            int, torch.Tensor
        ] = {}  # address → the mapped tensor, which keeps the mapping alive

    def holds(self, tensor: torch.Tensor) -> bool:
        """Tell whether a weight views a file now."""
        master = self._masters.get(tensor.data_ptr())
        return master is not None and master.nbytes == tensor.nbytes

    def adopt(self, parameters: Mapping[str, nn.Parameter], files: Iterable[Path]) -> int:
        """Let every parameter whose bytes are in one of the files view that file.

        Args:
            parameters: name → parameter; the names only decide which tensor of a file is compared first.
            files: candidates; one that is no safetensors file is passed over.

        Returns:
            The bytes that view a file afterwards.
        """
        missing = {name: p for name, p in parameters.items() if _is_plain(p) and not self.holds(p)}
        for path in files:
            # One at a time: never more than one weight is in memory twice.
            for name, master in _matches(missing, path):
                self._view_file(missing.pop(name), master)
        return sum(p.nbytes for p in parameters.values() if self.holds(p))

    def release(self, parameters: Iterable[nn.Parameter]) -> None:
        """Copy the parameters back into ordinary memory, the same Parameter objects."""
        for parameter in parameters:
            if self.holds(parameter):
                self._masters.pop(parameter.data_ptr())
                view(parameter, parameter.clone())

    def _view_file(self, parameter: nn.Parameter, master: torch.Tensor) -> None:
        self._masters[master.data_ptr()] = master
        view(parameter, master)
        pages.page_out(master)


_of_model: weakref.WeakKeyDictionary[nn.Module, MappedWeights] = weakref.WeakKeyDictionary()


def mapped_weights(model: nn.Module) -> MappedWeights:
    """Return the one record of a model's mapped weights, shared by everybody who uses that model."""
    return _of_model.setdefault(model, MappedWeights())


def view(parameter: nn.Parameter, tensor: torch.Tensor) -> None:
    with torch.inference_mode():  # weights made by a ComfyUI node are inference tensors
        parameter.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())


def _is_plain(parameter: nn.Parameter) -> bool:
    return why_unmovable(parameter) is None and parameter.device.type == "cpu" and parameter.is_contiguous()


def _matches(parameters: Mapping[str, nn.Parameter], path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    if not parameters:
        return
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError):
        return
    by_key: defaultdict[_Key, list[str]] = defaultdict(list)
    for name, tensor in tensors.items():
        by_key[tensor.dtype, tensor.shape].append(name)
    for name, parameter in list(parameters.items()):
        alike = by_key.get((parameter.dtype, parameter.shape), ())
        by_likeness = sorted(alike, key=lambda other: -_common_suffix(name, other))
        same = next((other for other in by_likeness if torch.equal(parameter, tensors[other])), None)
        if same is not None:
            yield name, tensors[same]


def _common_suffix(one: str, other: str) -> int:
    count = 0
    for a, b in zip(reversed(one), reversed(other), strict=False):
        if a != b:
            break
        count += 1
    return count
