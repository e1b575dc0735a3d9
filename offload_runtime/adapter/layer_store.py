"""The layer store: a folder of ours for weights that no model file can be read for, written once when somebody asked.

A pickled checkpoint, a matrix that was transposed as it was loaded, weights that were merged: memory has them, and no
safetensors file does. Who asks for the host tier `mapped` gets them written to a file in ComfyUI's folder for temporary
files, and read from there as from a model file. A file is named after what is in it, so that models with the same
weights share one, and is compared with the weights before they leave memory.

ComfyUI empties that folder when it starts and when it ends. Each server has a folder of its own in it, so that none
removes what another one of them uses; those of servers that are gone go with the first file that is written.
"""

from __future__ import annotations

import contextlib
import functools
import platform
import re
import shutil
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import comfy.model_management as mm
import folder_paths
import psutil
import torch
from torch import nn

from ..engine import Stack, WeightFile, digest, write
from ..errors import LayerStoreError
from ..policy import format_bytes
from .file_layers import FileLayers
from .progress import Step, progress

LIMIT = 64 * 1024**3
"""What all files of one server may take."""

SPARE = 1024**3
"""Room on the disk that is left to others."""


class LayerStore:
    """The files of one server.

    Args:
        folder: where they are.
        limit: how many bytes they may take together.
        spare: how many bytes stay free on the disk.
    """

    def __init__(self, folder: Path, limit: int, spare: int) -> None:
        self.folder = folder
        self._limit = limit
        self._spare = spare
        self._turn = threading.Lock()
        self._users: dict[Path, weakref.WeakSet[WeightFile]] = {}  # in the order of their last use

    def file_of(
        self, weights: Mapping[str, torch.Tensor], step: Step, *, anew: bool = False
    ) -> tuple[Path, bool]:
        """Return the file with some weights, and whether it has just been written.

        Args:
            weights: name → a weight in memory that can be stored.
            step: told how many more bytes are done; each is counted twice.
            anew: whether to write it in any case: what is there was found to be another.

        Raises:
            LayerStoreError: there is no room for it, or it cannot be written.
        """
        with self._turn:
            file = self.folder / f"{digest(weights, step)}.safetensors"
            is_there = file.is_file() and not anew
            self._users[file] = self._users.pop(file, weakref.WeakSet())
            if not is_there:
                self._write(file, weights, step)
            return file, not is_there

    def used_by(self, file: Path, reader: WeightFile) -> None:
        """Keep a file for as long as somebody reads from it."""
        self._users.setdefault(file, weakref.WeakSet()).add(reader)

    def _write(self, file: Path, weights: Mapping[str, torch.Tensor], step: Step) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            remove_abandoned(self.folder)
            self._make_room(file, sum(weight.nbytes for weight in weights.values()))
            write(file, weights, step)
        except OSError as error:
            raise LayerStoreError(
                f"its weights could not be written to {self.folder}: {error.strerror or error}"
            ) from error

    def _make_room(self, file: Path, size: int) -> None:
        sizes = {path: path.stat().st_size for path in self.folder.glob("*.safetensors") if path != file}
        unused = [path for path in (*(sizes.keys() - self._users.keys()), *self._users) if path in sizes]
        unused = [path for path in unused if not self._users.get(path)]
        while True:
            free = shutil.disk_usage(self.folder).free - self._spare
            left = self._limit - sum(sizes.values())
            if size <= min(free, left):
                return
            if not unused:
                break
            oldest = unused.pop(0)
            oldest.unlink()
            sizes.pop(oldest)
            self._users.pop(oldest, None)
        why = (
            f"{format_bytes(max(0, free))} are free there beside {format_bytes(self._spare)} for others"
            if size > free
            else f"the layer store may take {format_bytes(self._limit)}"
        )
        raise LayerStoreError(
            f"its {format_bytes(size)} of weights could not be written to {self.folder}: {why}"
        )


class Kept(NamedTuple):
    """What became of weights that no model file holds.

    Attributes:
        found: what files hold of the model now.
        why_not: why they were not stored, as the end of a sentence.
    """

    found: FileLayers
    why_not: str = ""


def keep(model: nn.Module, stacks: Sequence[Stack], files: Sequence[Path], found: FileLayers) -> Kept:
    """Store what no model file holds of a model's layers.

    Args:
        model: the model.
        stacks: its layers.
        files: safetensors files that its weights may have come from.
        found: what those hold.

    Raises:
        Whatever ComfyUI raises when somebody stops the prompt.
    """
    store = store_now()
    size = sum(weight.nbytes for weight in found.missing.values())
    step = _progress(2 * size)
    try:
        file, is_new = store.file_of(found.missing, step)
        whole = _with_stored(model, stacks, files, store, file)
        if whole.missing and not is_new:
            file, _ = store.file_of(found.missing, step, anew=True)
            whole = _with_stored(model, stacks, files, store, file)
    except LayerStoreError as error:
        return Kept(found, str(error))
    return Kept(whole, f"its weights could not be read back from {store.folder}" if whole.missing else "")


def _with_stored(
    model: nn.Module, stacks: Sequence[Stack], files: Sequence[Path], store: LayerStore, file: Path
) -> FileLayers:
    found = FileLayers(model, stacks, [*files, file])
    for reader in found.readers_of(file):
        store.used_by(file, reader)
    return found


def store_now() -> LayerStore:
    """Return the store of this server."""
    return _store_in(Path(folder_paths.get_temp_directory()))


@functools.cache
def _store_in(temporary: Path) -> LayerStore:
    return LayerStore(temporary / "layerwise_offload" / _name(psutil.Process()), LIMIT, SPARE)


def remove_abandoned(folder: Path) -> None:
    """Remove the stores of servers of this machine that are gone, beside the one of this server."""
    machine = _machine()
    for other in folder.parent.iterdir():
        found = re.fullmatch(rf"{re.escape(machine)}-(\d+)-\d+", other.name)
        if other == folder or not found:
            continue
        with contextlib.suppress(psutil.NoSuchProcess):
            if _name(psutil.Process(int(found[1]))) == other.name:
                continue
        shutil.rmtree(other, ignore_errors=True)


def _name(process: psutil.Process) -> str:
    """Return the name of a server's folder: process numbers are used again."""
    return f"{_machine()}-{process.pid}-{int(process.create_time())}"


def _machine() -> str:
    return re.sub(r"\W", "_", platform.node()) or "machine"


def _progress(total: int) -> Step:
    show = progress(total)

    def step(more: int) -> None:
        mm.throw_exception_if_processing_interrupted()
        show(more)

    return step
