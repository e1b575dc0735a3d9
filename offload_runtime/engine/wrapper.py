"""The wrapper around one layer's `forward`: an attribute of the instance, and nothing else."""

from __future__ import annotations

import inspect
import sys
import weakref
from collections.abc import Callable
from copy import copy, deepcopy
from functools import cache, partial
from typing import Any, Protocol

from torch import nn


class Runner(Protocol):
    """What runs a wrapped layer."""

    def run(self, index: int, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call `forward` of the layer that was wrapped under this index."""


class _LayerForward:
    """Stands in for one layer's `forward`. Refers weakly to both sides, so that it keeps nothing alive."""

    def __init__(self, module: nn.Module, index: int, runner: Runner) -> None:
        found: Any = module.__dict__.get("forward")
        self.previous: Callable[..., Any] | None = (
            found.previous if isinstance(found, _LayerForward) else found
        )
        self.runner: Callable[[], Runner | None] = weakref.ref(runner)
        self._module = weakref.ref(module)
        self._index = index
        dynamo = sys.modules.get("torch._dynamo")
        self._call = _opaque(dynamo) if dynamo is not None else _call
        self.__doc__ = module.forward.__doc__

    @property
    def __signature__(self) -> inspect.Signature:
        """That of the `forward` it stands for. Asked for seldom, and slow to make."""
        module = self._module()
        assert module is not None
        return inspect.signature(self.previous or partial(type(module).forward, module))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module = self._module()
        assert module is not None  # its own attribute is being called
        return self._call(module, self.previous, self.runner(), self._index, args, kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> _LayerForward:
        """A copy of the model is nobody's to stream: its layers call their own `forward`."""
        copied = copy(self)
        copied.previous = deepcopy(self.previous, memo)
        copied._module = weakref.ref(memo[id(self._module())])
        copied.runner = _nobody
        return copied


def _nobody() -> None:
    """Stand in for the reference to a runner."""


def _call(
    module: nn.Module,
    previous: Callable[..., Any] | None,
    runner: Runner | None,
    index: int,
    args: Any,
    kwargs: Any,
) -> Any:
    # Not a bound method: a compiler that rebuilds one looks `forward` up in the module, and finds the wrapper.
    forward = previous or partial(type(module).forward, module)
    if runner is None:
        return forward(*args, **kwargs)
    return runner.run(index, forward, args, kwargs)


@cache
def _opaque(dynamo: Any) -> Callable[..., Any]:
    """Return the call as `torch.compile` leaves it alone: traced, the exchange of weights would be compiled in."""
    opaque: Callable[..., Any] = dynamo.disable(_call)
    return opaque


def wrap(module: nn.Module, index: int, runner: Runner) -> None:
    """Let a runner call a module's `forward`, in place of the one that does so now."""
    module.__dict__["forward"] = _LayerForward(module, index, runner)


def unwrap(module: nn.Module) -> None:
    """Give a wrapped module back the `forward` that it had."""
    wrapper = module.__dict__["forward"]
    if wrapper.previous is None:
        del module.__dict__["forward"]
    else:
        module.__dict__["forward"] = wrapper.previous


def wrapper_of(module: nn.Module) -> _LayerForward | None:
    """Return the wrapper on a module, or None."""
    forward = module.__dict__.get("forward")
    return forward if isinstance(forward, _LayerForward) else None


def wrapped_by(module: nn.Module, runner: Runner) -> bool:
    """Tell whether this runner calls the module's `forward`."""
    wrapper = wrapper_of(module)
    return wrapper is not None and wrapper.runner() is runner
