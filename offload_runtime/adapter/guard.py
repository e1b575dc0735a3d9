"""A use that fails because a tensor is on the wrong device: ComfyUI loads the model as it does by itself, once.

What only a full load brings to the device is found by construction (`loose`). What nobody can see from outside is
code that takes a weight past the module it belongs to, or asks some weight where to compute. Such a model fails, or
hands its layers inputs on the host, in its first call. The guard stands around the outermost call: it lets the model
be loaded by ComfyUI alone, and makes the call again.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from ..engine import Layer
from ..engine.wrapper import unwrap, wrap, wrapped_by, wrapper_of
from ..log import warning
from .record import record_of

_MISPLACED = (
    "on the same device",
    "same device as",
    "found at least two devices",
    "should be the same",  # the input's type and the weight's, of a convolution
    "but expected it to be on",
    "but got device",
    "cannot be accessed from Triton",
)


def is_misplaced(error: Exception) -> bool:
    """Tell whether an error says that tensors are on different devices."""
    message = str(error)
    return any(part in message for part in _MISPLACED)


class Guard:
    """Stands around the calls of one model.

    Args:
        model: the model.
        layers: its layers that are streamed.
        load: lets ComfyUI load the model by itself; returns whether it could.
    """

    def __init__(self, model: nn.Module, layers: Sequence[Layer], load: Callable[[], bool]) -> None:
        self._model = weakref.ref(model)
        self._load = load
        self._around = list(_callers(model, layers))
        self._inside = False

    def install(self) -> None:
        """Wrap the modules that call the layers."""
        for index, module in enumerate(self._around):
            if wrapper_of(module) is not None:
                unwrap(module)
            wrap(module, index, self)

    def uninstall(self) -> None:
        """Unwrap them, unless another guard has wrapped them since."""
        for module in self._around:
            if wrapped_by(module, self):
                unwrap(module)

    def run(self, index: int, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a `forward`; the outermost one twice, if the first call fails for a reason of placement."""
        if self._inside:
            return forward(*args, **kwargs)
        self._inside = True
        try:
            return forward(*args, **kwargs)
        except (RuntimeError, ValueError) as error:
            if not is_misplaced(error) or not self._leave(error):
                raise
        finally:
            self._inside = False
        return forward(*args, **kwargs)

    def refuse(self, device: torch.device) -> None:
        """Hear that a layer was given inputs that are on another device.

        Raises:
            RuntimeError: the call can be made again.
        """
        if self._inside:
            raise RuntimeError(f"a layer's inputs are on {device}, and not on the same device as its weights")

    def _leave(self, error: Exception) -> bool:
        model = self._model()
        if model is None:
            return False
        reason = " ".join(str(error).split())
        failure = record_of(model).failure = f"a use with its layers streamed failed: {reason[:200]}"
        name = type(model).__name__
        warning("%s is left to ComfyUI's own memory manager, because %s", name, failure)
        return self._load()


def _callers(model: nn.Module, layers: Sequence[Layer]) -> Iterator[nn.Module]:
    """Yield the modules above layers that have a `forward`, outermost first."""
    above = {name for layer in layers for name in _names_above(layer.name)}
    streamed = {part for layer in layers for part in layer.module.modules()}
    for name, module in model.named_modules():
        has_forward = type(module).forward is not nn.Module.forward
        if name in above and has_forward and module not in streamed:
            yield module


def _names_above(name: str) -> Iterator[str]:
    while name:
        name = name.rpartition(".")[0]
        yield name
