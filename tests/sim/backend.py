"""The device module (``torch.sim``) and the registration of the backend.

Registration is process-wide and cannot be undone, so it happens when the first accelerator is switched on.
"""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from . import copies, streams
from .dispatch import dispatch
from .operators import aten
from .runtime import DEVICE_TYPE, active, is_active


class DeviceModule(ModuleType):
    """What ``torch.get_device_module("sim")`` returns: the part of ``torch.cuda``'s face that code uses."""

    Stream = streams.SimStream
    Event = streams.SimEvent
    StreamContext = stream = streams.StreamContext
    current_stream = staticmethod(streams.current_stream)
    default_stream = staticmethod(streams.default_stream)
    set_stream = staticmethod(streams.set_stream)
    synchronize = staticmethod(streams.synchronize)
    OutOfMemoryError = torch.OutOfMemoryError

    @staticmethod
    def is_available() -> bool:
        return is_active()

    @staticmethod
    def is_initialized() -> bool:
        return is_active()

    @staticmethod
    def device_count() -> int:
        return 1

    @staticmethod
    def current_device() -> int:
        return 0

    @staticmethod
    def set_device(device: Any) -> None:
        if not streams.is_sim(device):
            raise ValueError(f"{device} is not a simulated device.")

    @staticmethod
    def device(device: Any) -> AbstractContextManager[None]:
        return nullcontext()

    @staticmethod
    def memory_allocated(device: Any = None) -> int:
        return active().memory.live

    @staticmethod
    def max_memory_allocated(device: Any = None) -> int:
        return active().memory.torch_peak

    @staticmethod
    def memory_reserved(device: Any = None) -> int:
        return active().memory.reserved

    @staticmethod
    def max_memory_reserved(device: Any = None) -> int:
        return active().memory.torch_reserved_peak

    @staticmethod
    def reset_peak_memory_stats(device: Any = None) -> None:
        active().memory.reset_torch_peak()

    @staticmethod
    def memory_stats(device: Any = None) -> dict[str, int]:
        memory = active().memory
        return {
            "active_bytes.all.current": memory.live,
            "active_bytes.all.peak": memory.torch_peak,
            "allocated_bytes.all.current": memory.live,
            "allocated_bytes.all.peak": memory.torch_peak,
            "reserved_bytes.all.current": memory.reserved,
            "reserved_bytes.all.peak": memory.torch_reserved_peak,
        }

    @staticmethod
    def memory_summary(*_: Any, **__: Any) -> str:
        return active().memory.report()

    @staticmethod
    def mem_get_info(device: Any = None) -> tuple[int, int]:
        return active().memory.free, active().memory.cap

    get_memory_info = mem_get_info

    @staticmethod
    def empty_cache() -> None:
        memory = active().memory
        with memory._machine.lock:
            memory.empty_cache()

    @staticmethod
    def ipc_collect() -> None:
        """Nothing is shared between processes."""

    @staticmethod
    def get_device_name(device: Any = None) -> str:
        return f"Simulated {active().profile.name}"

    @staticmethod
    def get_device_capability(device: Any = None) -> tuple[int, int]:
        return 8, 9

    @staticmethod
    def get_device_properties(device: Any = None) -> SimpleNamespace:
        return SimpleNamespace(
            name=DeviceModule.get_device_name(),
            total_memory=active().memory.cap,
            major=8,
            minor=9,
            multi_processor_count=128,
            gcnArchName="",
        )

    @staticmethod
    def is_bf16_supported(including_emulation: bool = True) -> bool:
        return True

    @staticmethod
    def get_amp_supported_dtype() -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]

    @staticmethod
    def _is_in_bad_fork() -> bool:
        return False

    @staticmethod
    def manual_seed(seed: int) -> None:
        """Random numbers come from the CPU's generator, which the caller seeds."""

    manual_seed_all = manual_seed

    @staticmethod
    def get_rng_state(device: Any = None) -> torch.Tensor:
        return torch.get_rng_state()

    @staticmethod
    def set_rng_state(state: torch.Tensor, device: Any = None) -> None:
        torch.set_rng_state(state)


#: The stock kernels of these resize an empty result in C++, where a wrapper cannot follow.
_RESIZING_FACTORIES = (
    aten.arange.default,
    aten.arange.start,
    aten.arange.start_step,
    aten.eye.default,
    aten.eye.m,
    aten.randperm.default,
    aten.randperm.generator,
    aten.range.default,
    aten.range.step,
    aten.tril_indices.default,
    aten.triu_indices.default,
)

_libraries: list[torch.library.Library] = []


def register() -> None:
    """Teach this process the device type ``sim``, once."""
    if _libraries:
        return
    if torch._C._get_privateuse1_backend_name() == DEVICE_TYPE:
        raise RuntimeError("The simulator was imported under two names; import it under one, everywhere.")
    module = DeviceModule(DEVICE_TYPE)
    _setup_privateuseone_for_python_backend(DEVICE_TYPE, backend_module=module)
    fallback = torch.library.Library("_", "IMPL")
    fallback.fallback(lambda func, *args, **kwargs: dispatch(func, args, kwargs), "PrivateUse1")
    kernels = torch.library.Library("aten", "IMPL")
    # torch.tensor(..., device="sim") and list indices get here with Python dispatch off, where a fallback
    # fails.
    kernels.impl("copy_", _copy_, "PrivateUse1")
    # Outside inference mode autograd would take attention apart, which a card's fused kernel does not.
    kernels.impl("scaled_dot_product_attention", _attention, "AutogradPrivateUse1")
    for func in _RESIZING_FACTORIES:
        kernels.impl(func.name().removeprefix("aten::"), functools.partial(_factory, func), "PrivateUse1")
    _libraries.extend((fallback, kernels))


def _factory(func: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    return dispatch(func, args, kwargs)


def _copy_(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    return copies.SPECIAL[aten.copy_.default](
        active(), aten.copy_.default, (target, source, non_blocking), {}
    )


def _attention(*args: Any, **kwargs: Any) -> torch.Tensor:
    with torch._C._AutoDispatchBelowAutograd():
        return dispatch(aten.scaled_dot_product_attention.default, args, kwargs)
