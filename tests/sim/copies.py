"""Copies between host and device, and the values the host reads back."""

from __future__ import annotations

from typing import Any

import torch

from .dispatch import SPECIAL, Call, note_use
from .host import span
from .operators import aten, operator
from .runtime import Runtime
from .tensor import SimTensor
from .timeline import TO_DEVICE, TO_HOST

#: In shape-only mode results of up to this size read as zeros; bigger ones are never touched, and cost no
#: memory.
_TOUCHED = 1 << 20


def _copy_(runtime: Runtime, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    target, source = args[0], args[1]
    non_blocking = bool(args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
    if isinstance(target, SimTensor) and isinstance(source, SimTensor):
        Call(runtime, func, operator(func)).run((target, source), {})
    elif isinstance(target, SimTensor) and source.device.type == "cpu":
        _to_device(runtime, target, source, non_blocking)
    elif target.device.type == "cpu":
        _to_host(runtime, target, source, non_blocking)
    else:
        raise RuntimeError(f"Cannot copy from {source.device} to {target.device}.")
    return target


def _needs_temporary(target: torch.Tensor, source: torch.Tensor) -> bool:
    """Whether one memcpy cannot do it: other dtype, other strides, broadcast, or gaps."""
    if target.dtype != source.dtype or target.size() != source.size():
        return True
    if target.numel() <= 1 or (target.is_contiguous() and source.is_contiguous()):
        return False
    low, high = span(source)
    return target.stride() != source.stride() or high - low != source.numel() * source.element_size()


def _to_device(runtime: Runtime, target: SimTensor, source: torch.Tensor, non_blocking: bool) -> None:
    if source.dim() == 0 and target.dim():
        Call(runtime, aten.fill_.Tensor, operator(aten.fill_.Tensor)).run((target, source), {})
        return
    if _needs_temporary(target, source):
        # As torch does: an asynchronous copy converts on the device, a blocking one on the host.
        source = source.expand(target.size())
        if non_blocking and source.dtype != target.dtype:
            staged = torch.empty(target.size(), dtype=source.dtype, device=target.device)
            _to_device(runtime, staged, source.contiguous(), non_blocking)
            _copy_(runtime, aten.copy_.default, (target, staged), {})
            return
        if not target.is_contiguous():
            staged = torch.empty(target.size(), dtype=target.dtype, device=target.device)
            _to_device(runtime, staged, source, non_blocking)
            _copy_(runtime, aten.copy_.default, (target, staged), {})
            return
        source = _converted(runtime, source, target.dtype)
    _transfer_in(runtime, target, source, non_blocking)


def _converted(runtime: Runtime, source: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The pageable temporary a blocking copy is staged through."""
    if runtime.shapes_only:
        return torch.empty(source.size(), dtype=dtype)
    return torch.ops.aten._to_copy.default(source, dtype=dtype, memory_format=torch.contiguous_format)


def _transfer_in(runtime: Runtime, target: SimTensor, source: torch.Tensor, non_blocking: bool) -> None:
    machine = runtime.machine
    moved = target.numel() * target.element_size()
    pinned = runtime.host.find(source) is not None
    stream, access = machine.begin("copy to device")
    runtime.host.use(source, False, access, stream.clock)
    note_use(target, True, access, stream.clock)
    if not runtime.shapes_only:
        aten.copy_.default(target._inner, source)
    runtime.memory.note_weight(target._block.record, moved)
    machine.run(stream, TO_DEVICE, access.what, machine.profile.copy_time(moved, pinned), moved, pinned)
    if not (pinned and non_blocking):
        machine.wait_for_stream(stream, access.what)


def _to_host(runtime: Runtime, target: torch.Tensor, source: SimTensor, non_blocking: bool) -> None:
    if _needs_temporary(target, source):
        if target.dtype != source.dtype or not source.is_contiguous() or target.size() != source.size():
            source = source.to(target.dtype).expand(target.size()).contiguous()
        if not target.is_contiguous():
            staged = torch.empty(target.size(), dtype=target.dtype)
            _transfer_out(runtime, staged, source, non_blocking=False)
            aten.copy_.default(target, staged)
            return
    _transfer_out(runtime, target, source, non_blocking)


def _transfer_out(runtime: Runtime, target: torch.Tensor, source: SimTensor, non_blocking: bool) -> None:
    machine = runtime.machine
    moved = source.numel() * source.element_size()
    pinned = runtime.host.find(target) is not None
    stream, access = machine.begin("copy to host")
    note_use(source, False, access, stream.clock)
    runtime.host.use(target, True, access, stream.clock)
    if not runtime.shapes_only:
        aten.copy_.default(target, source._inner)
    machine.run(stream, TO_HOST, access.what, machine.profile.copy_time(moved, pinned), moved, pinned)
    if not (pinned and non_blocking):
        machine.wait_for_stream(stream, access.what)


def _to_copy(runtime: Runtime, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    source: SimTensor = args[0]
    device = kwargs.get("device")
    if device is None or torch.device(device).type == "sim":
        return Call(runtime, func, operator(func)).run(args, {**kwargs, "non_blocking": False})
    if torch.device(device).type == "meta":
        return source._inner.to("meta", dtype=kwargs.get("dtype"))
    if torch.device(device).type != "cpu":
        raise RuntimeError(f"Cannot copy from sim:0 to {device}.")
    non_blocking = bool(kwargs.get("non_blocking", False))
    shape = torch.empty_like(
        source._inner,
        dtype=kwargs.get("dtype") or source.dtype,
        device="meta",
        memory_format=kwargs.get("memory_format") or torch.preserve_format,
    )
    target = torch.empty_strided(shape.size(), shape.stride(), dtype=shape.dtype, device="cpu")
    if runtime.shapes_only and shape.untyped_storage().nbytes() < _TOUCHED:
        aten.zero_.default(target)
    if non_blocking:
        # torch pins the result of an asynchronous copy to the host, so that it really is asynchronous.
        runtime.host.pin(target)
    _to_host(runtime, target, source, non_blocking)
    return target


def _item(runtime: Runtime, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    source: SimTensor = args[0]
    host = torch.zeros((), dtype=source.dtype)
    _transfer_out(runtime, host, source.reshape(()), non_blocking=False)
    return aten._local_scalar_dense.default(host)


SPECIAL.update(
    {
        aten.copy_.default: _copy_,
        aten._to_copy.default: _to_copy,
        aten._local_scalar_dense.default: _item,
    }
)
