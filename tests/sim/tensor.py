"""The tensor of the simulated device: it reports ``sim:0`` and carries a CPU or meta tensor."""

from __future__ import annotations

from typing import Any

import torch

from .memory import Block

_DEVICE = "sim:0"


class SimStorage:
    """What ``untyped_storage()`` of a simulated tensor answers: enough to size and to identify a storage."""

    def __init__(self, block: Block) -> None:
        self._block = block
        self._cdata = block.record.address

    @property
    def device(self) -> torch.device:
        return torch.device(_DEVICE)

    def nbytes(self) -> int:
        return self._block.record.wanted

    size = __len__ = nbytes

    def data_ptr(self) -> int:
        return self._block.record.address

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SimStorage) and other._block is self._block

    def __hash__(self) -> int:
        return hash(self._cdata)


class SimTensor(torch.Tensor):
    """A tensor on the simulated device.

    ``_inner`` is the tensor that holds the numbers (or, in shape-only mode, the shape); ``_block`` is the
    device memory, shared with all views.
    """

    _inner: torch.Tensor
    _block: Block

    @staticmethod
    def __new__(cls, inner: torch.Tensor, block: Block) -> SimTensor:
        tensor = torch.Tensor._make_wrapper_subclass(
            cls, inner.size(), inner.stride(), inner.storage_offset(), dtype=inner.dtype, device=_DEVICE
        )
        tensor._inner = inner
        tensor._block = block
        return tensor

    @classmethod
    def view_of(cls, base: SimTensor, inner: torch.Tensor) -> SimTensor:
        """A tensor on the memory of ``base``: an inference tensor exactly if ``base`` is one, as in torch."""
        if base.is_inference() == torch.is_inference_mode_enabled():
            return SimTensor(inner, base._block)
        with torch.inference_mode(base.is_inference()):
            return SimTensor(inner, base._block)

    # The results of `.cpu()` and friends are plain tensors: nothing may be wrapped again on the way out.
    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        from .dispatch import dispatch

        for kind in types:
            if (
                not issubclass(kind, SimTensor)
                and kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
            ):
                return NotImplemented  # a wrapper around us (a quantised tensor) unpacks itself first
        return dispatch(func, args, kwargs or {})

    def __repr__(self, *, tensor_contents: object = None) -> str:
        if self._inner.is_meta:
            return f"tensor(..., device='{_DEVICE}', size={tuple(self.shape)}, dtype={self.dtype})"
        text = repr(self._inner.detach())
        return f"{text[:-1]}, device='{_DEVICE}')"

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self.dim() == 0 else repr(self)

    def data_ptr(self) -> int:
        return self._block.record.address + self.storage_offset() * self.element_size()

    def untyped_storage(self) -> SimStorage:  # type: ignore[override]
        return SimStorage(self._block)

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        if force:
            return self.detach().cpu().numpy()
        raise TypeError(
            "can't convert sim:0 device type tensor to numpy. Use Tensor.cpu() to copy it to host memory."
        )

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return self.numpy()

    def is_pinned(self, device: object = None) -> bool:
        return False

    def pin_memory(self, device: object = None) -> torch.Tensor:
        raise RuntimeError("cannot pin 'torch.sim.FloatTensor': only dense CPU tensors can be pinned")

    def record_stream(self, stream: Any) -> None:
        """Keep the memory from being reused until ``stream`` has passed the point at which it is freed."""
        memory = self._block.memory
        with memory._machine.lock:
            self._block.record.recorded_on.add(stream.stream_id)

    def as_subclass(self, cls: type[torch.Tensor]) -> torch.Tensor:
        """This tensor as ``cls``, which torch itself refuses for a wrapper: a class that is both."""
        if type(self) is combined_class(cls):
            return self
        with torch._C.DisableTorchFunctionSubclass():
            view = self.detach()
        view.__class__ = combined_class(cls)
        return view

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        if id(self) in memo:
            return memo[id(self)]
        with torch.no_grad():
            twin = self.clone()
        twin.requires_grad_(self.requires_grad)
        if getattr(self, "_is_param", False):
            twin._is_param = True
        memo[id(self)] = twin
        return twin

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise RuntimeError("A simulated tensor cannot be pickled: move it to the CPU first.")


class _Converting(SimTensor):
    """Base of the twins: results are of the host class again, as ``torch.Tensor`` does for its subclasses."""

    host_class: type[torch.Tensor]

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        if func in torch.overrides.get_default_nowrap_functions():
            return result
        return torch._tensor._convert(result, cls.host_class)


_combined: dict[type[torch.Tensor], type[SimTensor]] = {}


def combined_class(cls: type[torch.Tensor]) -> type[SimTensor]:
    """The simulated twin of a tensor subclass that has no dispatch of its own (as GGUF loaders use)."""
    if cls in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        return SimTensor
    if cls not in _combined:
        members = {"__torch_dispatch__": SimTensor.__dict__["__torch_dispatch__"], "host_class": cls}
        _combined[cls] = type(f"Sim{cls.__name__}", (cls, _Converting), members)
    return _combined[cls]
