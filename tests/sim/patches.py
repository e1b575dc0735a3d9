"""What stock PyTorch cannot be taught by registration, patched while an accelerator is on and put back after.

Moving parameters in place, pinned memory without CUDA, host copies that must show on the clock, and the
stream face of ``torch.accelerator``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._device import _device_constructors

from . import streams
from .runtime import active
from .tensor import SimTensor, combined_class

_FACTORIES = (
    "empty", "empty_like", "empty_strided", "full", "full_like", "ones", "ones_like", "rand", "randint",
    "randn", "tensor", "zeros", "zeros_like",
)  # fmt: skip

_METHODS = ("new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros")

#: In shape-only mode a host copy of at least this size is charged but not made.
_SKIPPED_COPY = 1 << 20


class Patches:
    """A stack of attribute replacements that :meth:`undo` takes back in reverse order."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        own = vars(owner) if hasattr(owner, "__dict__") else {}
        if name in own:
            previous = own[name]
            self._undo.append(lambda: setattr(owner, name, previous))
        else:
            self._undo.append(lambda: delattr(owner, name))
        setattr(owner, name, value)

    def callback(self, undo: Callable[[], None]) -> None:
        """Run ``undo`` in its turn."""
        self._undo.append(undo)

    def undo(self) -> None:
        while self._undo:
            self._undo.pop()()


def install(patches: Patches) -> None:
    """Apply everything below."""
    # `with torch.device("meta")` knows factories by identity: let it learn the originals first.
    _device_constructors()
    _parameters(patches)
    _pinning(patches)
    _generators(patches)
    _host_copies(patches)
    _accelerator(patches)


def _parameters(patches: Patches) -> None:
    """``p.data = q`` and ``Module.to`` keep a parameter the same object, as between CPU and CUDA."""
    original = torch._C.TensorBase.data
    compatible = torch._has_compatible_shallow_copy_type

    def read(self: torch.Tensor) -> torch.Tensor:
        if isinstance(self, SimTensor):
            with torch.no_grad():
                return self.detach()
        return original.__get__(self)

    def write(self: torch.Tensor, value: torch.Tensor) -> None:
        if isinstance(self, SimTensor) or isinstance(value, SimTensor):
            _replace(self, value)
        else:
            original.__set__(self, value)

    def has_compatible(input, from_):  # type: ignore[no-untyped-def]
        if isinstance(input, SimTensor) or isinstance(from_, SimTensor):
            return _plain(input) and _plain(from_)
        return compatible(input, from_)

    # Dynamo, if it is imported now, compares the annotated signature with its own: no strings.
    has_compatible.__annotations__ = {"input": torch.Tensor, "from_": torch.Tensor, "return": bool}

    class Data:
        """Of the class it is torch's own: that is what a tensor with a `__torch_function__` is asked with."""

        def __get__(self, tensor: torch.Tensor | None, owner: type) -> Any:
            return original if tensor is None else read(tensor)

        def __set__(self, tensor: torch.Tensor, value: torch.Tensor) -> None:
            if torch.overrides.has_torch_function((tensor,)) and _has_a_function_of_its_own(tensor):
                torch.overrides.handle_torch_function(original.__set__, (tensor,), tensor, value)
            else:
                write(tensor, value)

    patches.set(torch.Tensor, "data", Data())
    patches.set(torch, "_has_compatible_shallow_copy_type", has_compatible)


def _has_a_function_of_its_own(tensor: torch.Tensor) -> bool:
    """Whether a class wants to hear of `p.data = q`; torch's own function would only call what is replaced here."""
    function = getattr(type(tensor).__torch_function__, "__func__", None)
    return (
        not issubclass(type(tensor), SimTensor) and function is not torch.Tensor.__torch_function__.__func__
    )


def _plain(tensor: torch.Tensor) -> bool:
    """Ours, or without a dispatch of its own (a quantised tensor is replaced, not filled)."""
    return isinstance(tensor, SimTensor) or type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__


def _replace(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Make ``tensor``, the same object, hold what ``value`` holds."""
    parameter = isinstance(tensor, torch.nn.Parameter)
    wants_gradient = tensor.requires_grad
    with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
        fresh = value.detach()
    if wants_gradient and not fresh.is_inference():
        fresh.requires_grad_()
    host_class = getattr(tensor, "_sim_host_class", getattr(type(tensor), "host_class", type(tensor)))
    torch._C._swap_tensor_impl(tensor, fresh)
    if isinstance(value, SimTensor):
        if not isinstance(tensor, SimTensor):
            tensor.__class__ = combined_class(host_class)
            tensor._sim_host_class = host_class
            if parameter:
                tensor._is_param = True
        tensor._inner, tensor._block = value._inner, value._block
        return
    if isinstance(tensor, SimTensor):
        for name in ("_inner", "_block", "_sim_host_class", "_is_param"):
            tensor.__dict__.pop(name, None)
        tensor.__class__ = torch.nn.Parameter if parameter and host_class is SimTensor else host_class
        if issubclass(host_class, SimTensor) and not parameter:
            tensor.__class__ = torch.Tensor


def _pinning(patches: Patches) -> None:
    original = torch.Tensor.pin_memory

    def is_pinned(self: torch.Tensor, device: object = None) -> bool:
        return self.device.type == "cpu" and active().host.find(self) is not None

    def pin_memory(self: torch.Tensor, device: object = None) -> torch.Tensor:
        if self.device.type != "cpu":
            return original(self)
        if self.is_pinned():
            return self
        runtime = active()
        target = torch.empty_strided(self.size(), self.stride(), dtype=self.dtype, device="cpu")
        runtime.host.pin(target)
        with torch.no_grad():
            target.copy_(self)
        return target

    patches.set(torch.Tensor, "is_pinned", is_pinned)
    patches.set(torch.Tensor, "pin_memory", pin_memory)
    for owner, names in ((torch, _FACTORIES), (torch.Tensor, _METHODS)):
        for name in names:
            patches.set(owner, name, _pinnable(getattr(owner, name)))


def _generators(patches: Patches) -> None:
    """A generator of the card draws on the host, where the card's numbers are computed."""
    original = torch.Generator

    class OfTorch(type(original)):  # type: ignore[misc]
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, original)

    class Generator(original, metaclass=OfTorch):
        def __new__(cls, device: Any = "cpu") -> Any:
            return original("cpu" if torch.device(device).type == "sim" else device)

    patches.set(torch, "Generator", Generator)


def _pinnable(factory: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A factory whose ``pin_memory=True`` needs no CUDA."""

    @functools.wraps(factory)
    def make(*args: Any, pin_memory: bool = False, **kwargs: Any) -> torch.Tensor:
        tensor = factory(*args, **kwargs)
        return active().host.pin(tensor) if pin_memory else tensor

    return make


def _on_host(*tensors: Any) -> bool:
    return all(type(t) in (torch.Tensor, torch.nn.Parameter) and t.device.type == "cpu" for t in tensors)


def _noted(write: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A method that overwrites its tensor, made visible."""

    @functools.wraps(write)
    def wrapper(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if _on_host(self):
            with active().machine.lock:
                active().host.copied(self, None, name)
        return write(self, *args, **kwargs)

    return wrapper


def _host_copies(patches: Patches) -> None:
    """Host-to-host writes take time, and must not touch pinned bytes that a copy still uses."""
    copy, set_item = torch.Tensor.copy_, torch.Tensor.__setitem__

    def copy_(self: torch.Tensor, other: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        if not _on_host(self, other):
            return copy(self, other, non_blocking)
        runtime = active()
        with runtime.machine.lock:
            runtime.host.copied(self, other, "host copy")
        if runtime.shapes_only and self.numel() * self.element_size() >= _SKIPPED_COPY:
            return self
        return copy(self, other, non_blocking)

    def __setitem__(self: torch.Tensor, index: Any, value: Any) -> None:
        if _on_host(self) and self.is_pinned():
            with active().machine.lock:
                active().host.copied(self[index], value if _on_host(value) else None, "host copy")
        set_item(self, index, value)

    def foreach_copy_(self: Any, src: Any, non_blocking: bool = False) -> None:
        for target, source in zip(self, src, strict=True):
            target.copy_(source, non_blocking)

    patches.set(torch.Tensor, "copy_", copy_)
    patches.set(torch, "_foreach_copy_", foreach_copy_)
    patches.set(torch.Tensor, "fill_", _noted(torch.Tensor.fill_, "host fill"))
    patches.set(torch.Tensor, "zero_", _noted(torch.Tensor.zero_, "host fill"))
    patches.set(torch.Tensor, "__setitem__", __setitem__)


def _accelerator(patches: Patches) -> None:
    """``torch.accelerator`` and the generic stream and event classes, whose C++ side knows only stream 0."""
    module = torch.get_device_module("sim")
    for name in ("current_stream", "set_stream", "synchronize", "memory_stats", "memory_allocated",
                 "max_memory_allocated", "memory_reserved", "max_memory_reserved", "reset_peak_memory_stats",
                 "empty_cache", "get_memory_info"):  # fmt: skip
        patches.set(torch.accelerator, name, getattr(module, name))
    patches.set(torch, "Stream", _generic(torch.Stream, streams.SimStream))
    patches.set(torch, "Event", _generic(torch.Event, streams.SimEvent))


def _generic(original: type, ours: type) -> type:
    """A class to call and to test against that makes ours for the simulated device."""

    class Meta(type):
        def __call__(cls, device: Any = None, *args: Any, **kwargs: Any) -> Any:
            if streams.is_sim(device) and "device_type" not in kwargs:
                return ours(device, *args, **kwargs)
            return original(device, *args, **kwargs)

        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, (original, ours))

    return Meta(original.__name__, (), {})
