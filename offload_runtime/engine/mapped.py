"""Weights whose master is their safetensors file.

A loader copies every weight from the file into anonymous memory, which the kernel can only swap. Where a
weight's bytes equal those of a tensor in the file, the copy is given up and the same Parameter object rests in
the file instead (`resting`). A model larger than memory then runs.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from ..errors import WeightFileError
from .find import find, memory_of
from .mapping import Areas
from .parts import distinct_parts, is_wrapper, parts_of
from .resting import Rest, Resting, rest_of
from .resting_wrapper import guard, settle
from .store_file import can_store
from .weight_file import WeightFile

_WORKERS = min(4, os.cpu_count() or 1)


class _Weight(NamedTuple):
    """One weight, or part of one, in memory.

    Attributes:
        name: its name.
        parts: the tensors that are it: more than one where they are tied.
        exact: whether it can only be read as its very bytes: a wrapper takes its parts without asking them.
    """

    name: str
    parts: list[torch.Tensor]
    exact: bool = False

    def find(self, file: WeightFile, areas: Areas) -> Rest | None:
        """Return where in a file it is."""
        return find(self.name, self.parts[0], file, areas, exact=self.exact)


class _Laid(NamedTuple):
    """A weight, or part of one, that was laid into a file, and where."""

    parts: tuple[weakref.ref[torch.Tensor], ...]
    rest: Rest

    def live(self) -> list[torch.Tensor]:
        """Return the tensors that were laid there, or that ComfyUI has made of those since."""
        laid = [part for reference in self.parts if (part := reference()) is not None]
        return list({id(part): part for part in [*laid, *self.rest.woken(), *self.rest.resting()]}.values())


class Found:
    """Weights whose bytes a file has, and where.

    Attributes:
        weights: each with its place.
        missing: name → a weight in memory, or a part of one, that none of the files has and that could be in one.
    """

    def __init__(self, weights: Sequence[tuple[_Weight, Rest]], missing: Sequence[_Weight]) -> None:
        self.weights = weights
        self.missing = {
            f"{index}.{weight.name}": weight.parts[0]
            for index, weight in enumerate(missing)
            if can_store(weight.parts[0])
        }
        self._parts = {id(part) for weight, _ in weights for part in weight.parts}

    def bytes_in(self, folder: Path) -> int:
        """Return how much of them is in the files of a folder."""
        return sum(rest.stored.used_bytes for _, rest in self.weights if rest.file.path.parent == folder)

    def readers_of(self, path: Path) -> set[WeightFile]:
        """Return what reads a file, if anything was found there."""
        return {rest.file for _, rest in self.weights if rest.file.path == path}

    def bytes_of(self, parameter: torch.Tensor) -> int:
        """Return how much of a weight that is."""
        return sum(part.nbytes for part in parts_of(parameter) if id(part) in self._parts)


class MappedWeights:
    """The weights of one model that rest in a file, and the way back."""

    def __init__(self) -> None:
        self._laid: list[_Laid] = []
        self._in_use = False
        self._turn = threading.RLock()  # what rests comes back on a thread of its own

    @property
    def resting_bytes(self) -> int:
        """What waking them all would take."""
        return sum(laid.rest.stored.used_bytes for laid in self._laid if any(map(self.holds, laid.live())))

    def bytes_in(self, folder: Path) -> int:
        """Return how much of what rests is in the files of a folder."""
        there = [laid for laid in self._laid if laid.rest.file.path.parent == folder]
        return sum(laid.rest.stored.used_bytes for laid in there if any(map(self.holds, laid.live())))

    def holds(self, tensor: torch.Tensor) -> bool:
        """Tell whether a weight, or part of it, rests in a file now."""
        return any(isinstance(part, Resting) for part in parts_of(tensor))

    def bytes_at_rest(self, tensor: torch.Tensor) -> int:
        """Return how much of a weight is in a file, and takes no memory."""
        rests = [rest for part in parts_of(tensor) if (rest := rest_of(part)) is not None]
        return sum(rest.stored.used_bytes - rest.written_bytes for rest in rests)

    def adopt(
        self,
        parameters: Mapping[str, nn.Parameter],
        files: Iterable[Path],
        others: Iterable[torch.Tensor] = (),
    ) -> int:
        """Let every parameter whose bytes are in one of the files rest there.

        Args:
            parameters: name → parameter; the names only decide which tensor of a file is compared first.
            files: candidates; one that is no safetensors file is passed over.
            others: tensors that stay in memory, and with them whatever shares memory with them.

        Returns:
            The bytes that rest in a file afterwards.
        """
        self.lay(self.find(parameters, files, others), parameters.values())
        return sum(part.nbytes for part in distinct_parts(parameters.values()) if isinstance(part, Resting))

    def find(
        self,
        parameters: Mapping[str, nn.Parameter],
        files: Iterable[Path],
        others: Iterable[torch.Tensor] = (),
    ) -> Found:
        """Find the parameters whose bytes are in one of the files, and change nothing; as for `adopt`."""
        with self._turn:  # not while they come back into memory
            missing = _weights(parameters, others)
        found = []
        for path in files:
            if not missing:
                break
            try:
                file = WeightFile(path)
                file.map()
            except (OSError, ValueError):
                continue
            areas = Areas()
            with ThreadPoolExecutor(_WORKERS) as workers:
                rests = list(workers.map(_Weight.find, missing, repeat(file), repeat(areas)))
            found += [(weight, rest) for weight, rest in zip(missing, rests, strict=True) if rest is not None]
            missing = [weight for weight, rest in zip(missing, rests, strict=True) if rest is None]
        return Found(found, missing)

    def lay(self, found: Found, parameters: Iterable[nn.Parameter]) -> None:
        """Let those of the parameters that were found rest where they were found."""
        with self._turn:
            parameters = list(parameters)
            wanted = set(map(id, distinct_parts(parameters)))
            for weight, rest in found.weights:
                if any(id(part) in wanted for part in weight.parts):
                    rest.lay(weight.parts)
                    self._laid.append(_Laid(tuple(map(weakref.ref, weight.parts)), rest))
            for parameter in filter(is_wrapper, parameters):
                guard(parameter)
            self._laid = list(
                {tuple(map(id, laid.live())): laid for laid in self._laid if laid.live()}.values()
            )

    @property
    def unread(self) -> int:
        """How many weights that rest nobody has read whole yet, so that nobody knows a checksum of them."""
        return sum(laid.rest.checksum is None and bool(laid.live()) for laid in self._laid)

    def take_checksums(self) -> None:
        """Read what nobody has read yet, so that it does not matter afterwards if the file is replaced or moved."""
        for laid in list(self._laid):
            if laid.live():
                laid.rest.take_checksum()

    def begin_use(self, live: Iterable[torch.Tensor] = ()) -> None:
        """Let weights that somebody has woken, and not changed, rest again.

        ComfyUI may have made new ones of them since, around the same memory: they are looked for among `live`.
        Those that somebody has changed in the file's mapping, where torch did not tell of it, are woken, and what was
        written there takes no memory any more.
        """
        with self._turn:
            self._in_use = True
            self._rest_again(list(live))

    def end_use(self) -> None:
        """Let what was woken since the use began, and is as before, rest again: a hook writes, and writes back."""
        with self._turn:
            if self._in_use:
                self._in_use = False
                self._rest_again()

    def _rest_again(self, live: Sequence[torch.Tensor] = ()) -> None:
        self._settle()
        by_address: defaultdict[int, list[torch.Tensor]] = defaultdict(list)
        if any(laid.rest.woken_at for laid in self._laid):
            for part in filter(_is_in_memory, distinct_parts(live)):
                by_address[part.data_ptr()].append(part)
        for index, (laid, rest) in enumerate([(laid, laid.rest) for laid in self._laid]):
            known = laid.live()
            made = [part for part in by_address[rest.woken_at] if not any(part is other for other in known)]
            awake = [part for part in [*known, *made] if not self.holds(part)]
            weights = _weights({str(number): part for number, part in enumerate(awake)})
            if len(weights) != 1 or not rest.file.is_in_place():
                continue
            checksum = rest.file.checksum_if_equal(rest.stored, memory_of(awake[0]))
            if checksum is not None:
                # A place of its own, if none rests there: whoever has an alias of the weight in memory keeps it.
                again = rest if rest.resting() else Rest(rest.file, rest.stored, checksum)
                again.woken_at = rest.woken_at
                again.lay(awake)
                self._laid[index] = _Laid(tuple(map(weakref.ref, [*known, *made])), again)
        for wrapper in filter(is_wrapper, live):
            guard(wrapper)

    def _settle(self) -> None:
        files = {id(laid.rest.file): laid.rest.file for laid in self._laid}
        for file in filter(WeightFile.is_written, files.values()):
            # Where the file has changed, too, the writes stay; whoever uses such a weight hears of it.
            with contextlib.suppress(WeightFileError):
                for laid in self._laid:
                    stored = laid.rest.stored
                    if laid.rest.file is file and not stored.widens and file.differs(stored, file.map()):
                        laid.rest.wake()
                file.drop_written()

    def release(self, parameters: Iterable[nn.Parameter]) -> None:
        """Copy the parameters back into ordinary memory, the same Parameter objects.

        Raises:
            WeightFileError: a file does not have the bytes any more.
        """
        with self._turn:
            self._in_use = False
            parameters = list(parameters)
            for part in distinct_parts(parameters):
                if isinstance(part, Resting):
                    part.rest.wake()
            for parameter in parameters:
                settle(parameter)

    def release_all(
        self, live: Iterable[torch.Tensor] = (), unless: Callable[[], bool] = lambda: False
    ) -> None:
        """Copy everything that rests in a file into memory, and forget the files.

        Args:
            live: the weights of the model.
            unless: asked when nobody else is at it; when it says so, nothing is done.

        Raises:
            WeightFileError: some of it is not there any more; that rests on.
        """
        with self._turn:
            if unless():
                return
            self._in_use = False
            lost: list[_Laid] = []
            failure: WeightFileError | None = None
            for laid in self._laid:
                try:
                    laid.rest.wake()
                except WeightFileError as error:
                    failure = error
                    lost.append(laid)
            self._laid = lost
            for parameter in live:
                settle(parameter)
            if failure is not None:
                raise failure


def _weights(parameters: Mapping[str, torch.Tensor], others: Iterable[torch.Tensor] = ()) -> list[_Weight]:
    """Return the weights that may rest: they share memory with nothing but what is the same weight."""
    named = {id(part): (name, part) for name, p in parameters.items() for part in parts_of(p)}
    weights: dict[tuple[int, int], _Weight] = {}
    spans = {_span(t) for t in distinct_parts(others) if id(t) not in named and _is_in_memory(t)}
    lone = set(spans)
    for name, part in named.values():
        if _is_in_memory(part):
            span = _span(part)
            weights.setdefault(span, _Weight(name, [])).parts.append(part)
            spans.add(span)
    shared, end = lone, 0
    before = (0, 0)
    for span in sorted(spans):
        if span[0] < end:
            shared |= {before, span}
        if span[1] > end:
            before, end = span, span[1]
    wrapped = {id(part) for p in parameters.values() if is_wrapper(p) for part in parts_of(p)}
    return [
        w._replace(exact=any(id(part) in wrapped for part in w.parts))
        for span, w in weights.items()
        if span not in shared and _is_one(w.parts)
    ]


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """Return where a tensor's memory begins and ends."""
    elements = 1 + sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return tensor.data_ptr(), tensor.data_ptr() + elements * tensor.itemsize


def _is_in_memory(tensor: torch.Tensor) -> bool:
    plain = type(tensor) in (nn.Parameter, torch.Tensor) and tensor.layout is torch.strided
    return plain and tensor.device.type == "cpu" and tensor.numel() > 0


def _is_one(parts: Sequence[torch.Tensor]) -> bool:
    """Tell whether tensors that lie in the same place are one weight, or the same part of it."""
    first = parts[0]
    return all((p.dtype, p.shape) == (first.dtype, first.shape) and p.is_contiguous() for p in parts)
