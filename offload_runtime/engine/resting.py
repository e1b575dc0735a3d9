"""Weights at rest: Parameters whose bytes are in a file and take no memory, but are there for whoever asks.

A resting weight is the same Parameter object as before, of another class. Its shape, dtype and device are answered
at once. The streamer copies it straight from the file into a slot. Whoever else touches its values, a hook, a merge,
a node that saves, a clone of the model that is not placed, wakes it: it is read into memory, and is an ordinary
Parameter from then on. Each of these reads is one that fails as an exception (`weight_file`).

Beneath lies a private mapping of the file, for code that reads a tensor's address and never asks torch: it finds
the right bytes, as long as the file has them. What it writes there is seen by every read that follows, and is an
ordinary weight from the next use on (`MappedWeights.begin_use`). Where the file has the weight in a narrower dtype,
there is no memory beneath, and such code gets an exception (`nowhere`).
"""

from __future__ import annotations

import copy
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from .file_tensor import FileTensor
from .nowhere import let_be_set, take_memory
from .profiling import named
from .tensor_names import CONVERSIONS, FACTS, QUESTIONS
from .weight_file import WeightFile, bytes_of
from .widening import widen_in_place

without_dispatch = torch._C.DisableTorchFunctionSubclass


class Place:
    """Where the values of one weight are, and all tensors that view it there: tied ones, and aliases.

    Args:
        stored: what is there, and what it becomes.

    Attributes:
        woken_at: the address to which it was read when it was woken last; 0 where it never was.
    """

    def __init__(self, stored: FileTensor) -> None:
        self.stored = stored
        self._lock = threading.RLock()
        self._tensors: list[weakref.ref[torch.Tensor]] = []
        self._woken: list[weakref.ref[torch.Tensor]] = []
        self.woken_at = 0

    def join(self, tensor: torch.Tensor) -> torch.Tensor:
        """Make a tensor that views the place a resting one, too."""
        with self._lock:
            tensor.__class__ = Resting
            tensor.rest = self  # type: ignore[attr-defined]
            self._tensors = [*filter(_is_alive, self._tensors), weakref.ref(tensor)]
        return tensor

    def leave(self, tensor: torch.Tensor) -> None:
        """Make a resting tensor an ordinary one: it views other memory now."""
        with self._lock:
            is_parameter = tensor.__dict__.pop("_is_param", False)
            tensor.__class__ = nn.Parameter if is_parameter else torch.Tensor
            tensor.__dict__.pop("rest", None)
            self._tensors = [reference for reference in self._tensors if reference() is not tensor]

    def wake(self) -> None:
        """Read the weight into memory, for everybody who views it.

        Raises:
            WeightFileError: the file does not have it any more.
        """
        with self._lock, without_dispatch():
            tensors = [tensor for reference in self._tensors if (tensor := reference()) is not None]
            if not tensors:
                return  # another thread has just done it
            memory = self.read()
            self._woken, self.woken_at = [weakref.ref(tensor) for tensor in tensors], memory.data_ptr()
            for tensor in tensors:
                view(tensor, memory.as_strided(tensor.shape, tensor.stride()))

    def resting(self) -> list[torch.Tensor]:
        """Return the tensors that rest here now."""
        return [tensor for reference in self._tensors if (tensor := reference()) is not None]

    def woken(self) -> list[torch.Tensor]:
        """Return the tensors that rested here until the weight was read into memory."""
        return [tensor for reference in self._woken if (tensor := reference()) is not None]

    def read(self) -> torch.Tensor:
        """Return a copy of the weight."""
        with torch.inference_mode(False):
            copied = torch.empty(self.stored.shape, dtype=self.stored.used)
        self.read_into(copied)
        return copied

    def read_into(self, target: torch.Tensor) -> None:
        """Read the weight into a contiguous CPU tensor of its dtype and shape."""
        raise NotImplementedError

    def read_rows(self, rows: list[int]) -> torch.Tensor | None:
        """Return some rows of a matrix, or None when all of it has to be read."""
        return None

    def read_ahead(self) -> None:
        """Hear that it is read soon."""

    @property
    def written_bytes(self) -> int:
        """How much memory it takes all the same."""
        return 0


class Rest(Place):
    """The place of one weight in a file.

    Args:
        file: the file.
        stored: where in it.
        checksum: of its bytes. None where nobody has read them yet: it is taken when they are first read whole, and
            until then the weight can only be read if the file is like the one it was.
    """

    def __init__(self, file: WeightFile, stored: FileTensor, checksum: int | None) -> None:
        super().__init__(stored)
        self.file = file
        self.checksum = checksum

    def lay(self, parts: Iterable[torch.Tensor]) -> None:
        """Let weights, or parts of weights, rest here; they had these very bytes."""
        with (
            self._lock
        ):  # who asks for one that has joined already waits until there is nothing wrong to be seen
            below = self._below()
            for part in parts:
                if isinstance(part, nn.Parameter):
                    part._is_param = True
                self.join(part)
                _set(part, below)
            if self.stored.widens:
                take_memory(below)

    def _below(self) -> torch.Tensor:
        """Return what a weight that rests views: the file, if that has its very bytes."""
        stored = self.stored
        if stored.widens:
            with torch.inference_mode(False):
                return torch.empty(stored.shape, dtype=stored.used)
        count = stored.nbytes // stored.dtype.itemsize
        return self.file.map().view(stored.start, count, stored.dtype).view(stored.shape)

    def read_into(self, target: torch.Tensor) -> None:
        """Read the weight into a contiguous CPU tensor of its dtype and shape."""
        with named("read", self.stored.name):
            data = bytes_of(target)
            stored = data[len(data) - self.stored.nbytes :]
            self.checksum = self.file.read_into(stored, self.stored, self.checksum)
            self._convert(data)

    def _convert(self, data: memoryview) -> None:
        """Convert what was read to the end of some memory, so that it fills all of it."""
        if self.stored.widens:
            widen_in_place(data, self.stored.dtype, self.stored.used)

    def take_checksum(self) -> None:
        """Take the checksum, if nobody has read the weight yet and nothing has happened to the file."""
        if self.checksum is None:
            self.checksum = self.file.checksum(self.stored)

    def read_rows(self, rows: list[int]) -> torch.Tensor | None:
        """Return some rows of a matrix, or None when all of it has to be read."""
        stored = self.stored
        if len(stored.shape) != 2 or not rows or rows[0] < 0 or rows[-1] >= stored.shape[0]:
            return None
        with torch.inference_mode(False):
            copied = torch.empty(len(rows), stored.shape[1], dtype=stored.used)
        data = bytes_of(copied)
        size = len(rows) * stored.nbytes // stored.shape[0]
        with named("read rows of", stored.name):
            if not self.file.read_rows(data[len(data) - size :], stored, rows):
                return None
            self._convert(data)
            return copied

    def read_ahead(self) -> None:
        """Start to read it into the system's cache."""
        self.file.read_ahead(self.stored)

    @property
    def written_bytes(self) -> int:
        """How much memory pages take that somebody has written to."""
        return sum(end - start for start, end in self.file.written(self.stored))


class Resting(torch.Tensor):
    """A tensor that rests. Made and unmade by changing the class of the object, which stays the same."""

    rest: Place

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Answer what needs no values, read what is only copied, and wake it for everything else."""
        answer = answer_to(func)
        with without_dispatch():
            return answer(func, args, kwargs or {})

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        self.rest.wake()
        return copy.deepcopy(self, memo)  # it is a Parameter or a Tensor now

    def __reduce_ex__(self, protocol: Any) -> Any:
        self.rest.wake()
        return self.__reduce_ex__(protocol)


def view(tensor: torch.Tensor, memory: torch.Tensor) -> None:
    """Let a tensor, the same object, view other memory; it does not rest afterwards."""
    rest = rest_of(tensor)
    if rest is not None and rest.stored.widens:
        with without_dispatch():
            let_be_set(tensor)
    _set(tensor, memory)
    if rest is not None:
        rest.leave(tensor)


def _set(tensor: torch.Tensor, memory: torch.Tensor) -> None:
    with torch.inference_mode(), without_dispatch():  # weights made by a ComfyUI node are inference tensors
        tensor.set_(memory.untyped_storage(), memory.storage_offset(), memory.shape, memory.stride())


def rest_of(value: Any) -> Place | None:
    """Return where a tensor rests, or None when it does not."""
    # Another thread may wake it at any moment.
    return value.__dict__.get("rest") if isinstance(value, Resting) else None


def address(tensor: torch.Tensor) -> int:
    """Return where a tensor's memory begins, without waking it: 0 where it rests."""
    return 0 if isinstance(tensor, Resting) else tensor.data_ptr()


def read_ahead(tensor: torch.Tensor) -> None:
    """Hear that a resting tensor is read soon."""
    rest = rest_of(tensor)
    if rest is not None:
        rest.read_ahead()


def answer_to(func: Callable[..., Any]) -> Answer:
    """Return how a resting tensor answers one of torch's functions."""
    return _ANSWERS.get(func) or _ANSWERS.get(getattr(func, "__name__", None), _awake)


Answer = Callable[[Callable[..., Any], Sequence[Any], Mapping[str, Any]], Any]


def _awake(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    for rest in filter(None, map(rest_of, list(found_in((args, kwargs), Resting)))):
        rest.wake()
    return func(*args, **kwargs)


def as_it_is(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return func(*args, **kwargs)


def alias(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    rest = rest_of(args[0])
    alias = func(*args, **kwargs)
    return alias if rest is None else rest.join(alias)


def copied(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Convert a weight: what comes out is a copy of it, or itself where there is nothing to convert."""
    tensor, *others = args
    rest = rest_of(tensor)
    if rest is None:
        return func(*args, **kwargs)
    if changes_nothing(func, tensor, others, kwargs):
        return tensor
    return func(rest.read(), *others, **kwargs)


def _copy_from(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    target, *source = args
    rest = rest_of(source[0]) if source else None
    if rest is None or isinstance(target, Resting):
        return _awake(func, args, kwargs)
    fits = (target.dtype, target.shape) == (rest.stored.used, rest.stored.shape)
    if fits and type(target) in (torch.Tensor, nn.Parameter) and target.is_cpu and target.is_contiguous():
        rest.read_into(target)
        return target
    return func(target, rest.read(), *source[1:], **kwargs)


def _set_data(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    tensor, value = args
    before, after = rest_of(tensor), rest_of(value)
    if after is not None:
        if before is after:
            return None  # `module.to(where it is)`
        after.wake()
    if before is not None:
        before.leave(tensor)
    tensor.data = value
    return None


def _looked_up(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Look rows up in a table of which only they are read."""
    ids, table, *others = args
    rest = rest_of(table)
    changes = len(others) > 1 or kwargs.get("max_norm") is not None
    if rest is None or changes or isinstance(ids, Resting) or not ids.is_cpu:
        return _awake(func, args, kwargs)
    return _rows_of(rest, ids)


def _rows_looked_up(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The same for the dispatcher's function, which has the table first."""
    table, ids, *_ = args
    rest = rest_of(table)
    if rest is None or isinstance(ids, Resting) or not ids.is_cpu:
        return _awake(func, args, kwargs)
    return _rows_of(rest, ids)


def _rows_of(rest: Place, ids: torch.Tensor) -> torch.Tensor:
    distinct, places = torch.unique(ids, return_inverse=True)
    rows = rest.read_rows(distinct.tolist())
    return torch.embedding(rest.read(), ids) if rows is None else torch.embedding(rows, places)


def changes_nothing(
    func: Callable[..., Any], tensor: torch.Tensor, others: Sequence[Any], kwargs: Mapping[str, Any]
) -> bool:
    """Tell whether a conversion would return the weight itself."""
    if "memory_format" in kwargs:
        return False
    probe = torch.empty((0,) * max(1, tensor.ndim), dtype=tensor.dtype)
    return func(probe, *others, **kwargs) is probe


def found_in(value: Any, *kinds: type[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yield the tensors of some classes among the arguments of a function."""
    if isinstance(value, kinds):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from found_in(item, *kinds)
    elif isinstance(value, dict):
        yield from found_in(list(value.values()), *kinds)


def _is_alive(reference: weakref.ref[torch.Tensor]) -> bool:
    return reference() is not None


def _answers() -> dict[Any, Answer]:
    # What is missing here only costs memory: the weight is woken. Methods go by their names: there are packs that
    # wrap those of torch.
    tensor: Any = torch.Tensor
    answers: dict[Any, Answer] = {getattr(tensor, n).__get__: as_it_is for n in FACTS if hasattr(tensor, n)}
    answers |= {
        tensor.data.__get__: alias,
        tensor.data.__set__: _set_data,
        tensor.requires_grad.__set__: as_it_is,
    }
    answers |= dict.fromkeys(QUESTIONS, as_it_is) | dict.fromkeys(CONVERSIONS, copied)
    answers |= {"detach": alias, "copy_": _copy_from, nn.functional.embedding: _looked_up}
    # What `HostWeight` has been asked for comes as the dispatcher's own functions.
    aten: Any = torch.ops.aten
    return answers | {
        aten.detach.default: alias,
        aten._to_copy.default: copied,
        aten.embedding.default: _rows_looked_up,
    }


_ANSWERS = _answers()
