"""The wrapper around one layer's `forward`: an attribute of the instance, and nothing else."""

from __future__ import annotations

import inspect
import sys
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from torch import nn


class Runner(Protocol):
    """What runs a wrapped layer."""

    def run(self, index: int, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call `forward` of the layer that was wrapped under this index."""


class _LayerForward:
    """Stands in for one layer's `forward`. Refers weakly to both sides, so that it keeps nothing alive."""

    def __init__(self, module: nn.Module, index: int, runner: Runner) -> None:
        self.previous = module.__dict__.get("forward")
        self.runner = weakref.ref(runner)
        self._module = weakref.ref(module)
        self._index = index
        # Traced by `torch.compile`, the exchange of weights would be compiled in. A streamed layer runs as it is.
        dynamo = sys.modules.get("torch._dynamo")
        self._call = dynamo.disable(self._run) if dynamo is not None else self._run
        self.__signature__ = inspect.signature(module.forward)
        self.__doc__ = module.forward.__doc__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        module, runner = self._module(), self.runner()
        assert module is not None  # its own attribute is being called
        # Not a bound method: a compiler that rebuilds one looks `forward` up in the module, and finds this wrapper.
        forward = self.previous or partial(type(module).forward, module)
        if runner is None:
            return forward(*args, **kwargs)
        return runner.run(self._index, forward, args, kwargs)


def wrap(module: nn.Module, index: int, runner: Runner) -> None:
    """Let a runner call a module's `forward`; the module must not be wrapped already."""
    module.__dict__["forward"] = _LayerForward(module, index, runner)


def unwrap(module: nn.Module) -> None:
    """Give a wrapped module back the `forward` that it had."""
    wrapper = module.__dict__.pop("forward")
    if wrapper.previous is not None:
        module.__dict__["forward"] = wrapper.previous


def wrapper_of(module: nn.Module) -> _LayerForward | None:
    """Return the wrapper on a module, or None."""
    forward = module.__dict__.get("forward")
    return forward if isinstance(forward, _LayerForward) else None


def wrapped_by(module: nn.Module, runner: Runner) -> bool:
    """Tell whether this runner calls the module's `forward`."""
    wrapper = wrapper_of(module)
    return wrapper is not None and wrapper.runner() is runner
