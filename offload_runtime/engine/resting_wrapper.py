"""Quantised weights at rest: wrappers, subclasses of `torch.Tensor`, around parts of which some rest in a file.

A wrapper's own operations take its parts without torch asking those first, so the wrapper has to be asked. It is the
same object as before, of a class in between: that answers what needs no values, as a resting tensor does, and reads
all parts into memory for everything else. Then it is of its own class again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from .parts import assemble, kind_of, parts_of
from .resting import (
    Place,
    Resting,
    alias,
    answer_to,
    as_it_is,
    changes_nothing,
    copied,
    found_in,
    rest_of,
    without_dispatch,
)

_between: dict[type, type] = {}
"""Class of a wrapper → the class that it is of while it rests."""


class RestingWrapper(torch.Tensor):
    """What a wrapper is of, beside its own class, while parts of it rest."""

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Answer what needs no values, and read the parts of all resting wrappers for everything else."""
        kwargs = kwargs or {}
        answer, wrapper = answer_to(func), args[0] if args else None
        if isinstance(wrapper, RestingWrapper):
            if answer is as_it_is:
                with without_dispatch():
                    return func(*args, **kwargs)
            if answer is copied and changes_nothing(func, wrapper, args[1:], kwargs):
                return wrapper
            if answer is alias:
                return _alias(wrapper)
        for resting in list(found_in((args, kwargs), Resting, RestingWrapper)):
            wake(resting)
        return func(*args, **kwargs)


def guard(wrapper: torch.Tensor) -> None:
    """Let a wrapper be asked first, if any part of it rests."""
    kind = kind_of(wrapper)
    if not any(True for _ in _rests(wrapper)):
        return
    if kind not in _between:
        members = {"__module__": kind.__module__, "guards": kind}
        _between[kind] = type(kind.__name__, (RestingWrapper, kind), members)
    wrapper.__class__ = _between[kind]  # nothing else: torch moves no wrapper that is referred to weakly


def wake(wrapper: torch.Tensor) -> None:
    """Read all parts of a wrapper into memory, and let it be of its own class again.

    Raises:
        WeightFileError: the file does not have one of them any more.
    """
    for rest in list(_rests(wrapper)):
        rest.wake()
    settle(wrapper)


def settle(wrapper: torch.Tensor) -> None:
    """Let a wrapper be of its own class again, if no part of it rests any more."""
    if isinstance(wrapper, RestingWrapper) and not any(True for _ in _rests(wrapper)):
        wrapper.__class__ = kind_of(wrapper)


def _alias(wrapper: torch.Tensor) -> torch.Tensor:
    """Return another wrapper of the same parts; torch's own way would let the class copy some of them."""
    twin = assemble(wrapper, iter([part.detach() for part in parts_of(wrapper)]))
    twin.__dict__.pop("_is_param", None)
    guard(twin)
    return twin


def _rests(wrapper: torch.Tensor) -> Iterator[Place]:
    yield from filter(None, map(rest_of, parts_of(wrapper)))
