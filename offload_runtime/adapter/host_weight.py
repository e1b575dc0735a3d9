"""A tensor that stands in for a weight which stays on the host, for whoever computes on the device with it.

Text models and packs ask a token table for its shape, its values and its device, and compute with what they find
there. To them it has to be a tensor on the compute device, and the parameter itself to whoever writes to it.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

_ROWS = (torch.ops.aten.embedding, torch.ops.aten.index, torch.ops.aten.index_select)
"""Operations that need a few rows only: those are looked up where the table is, and sent."""


class HostWeight(torch.Tensor):
    """A tensor on the compute device whose values are on the host.

    Rows are looked up on the host and sent. A view of it is such a tensor, too, and what is written to either is
    written to the parameter. Everything else gets a copy of the whole on the device.

    Args:
        host: the weight.
        device: the compute device.
    """

    _host: torch.Tensor
    _is_param = True  # torch's own mark: `isinstance(weight, nn.Parameter)`
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # results are plain

    @staticmethod
    def __new__(cls, host: torch.Tensor, device: torch.device) -> HostWeight:
        """Make one without memory of its own."""
        stand_in: HostWeight = torch.Tensor._make_wrapper_subclass(
            cls,
            host.shape,
            host.stride(),
            host.storage_offset(),
            dtype=host.dtype,
            device=device,
            requires_grad=host.requires_grad,
        )
        stand_in._host = host
        return stand_in

    @property
    def data(self) -> torch.Tensor:
        """The values, still on the host; assigning replaces those of the parameter."""
        return HostWeight(self._host.data, self.device)

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        self._host.data = value.to(self._host.device)

    def __getattr__(self, name: str) -> Any:
        """What others have noted on the parameter."""
        return getattr(self._host, name)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return repr(self._host)

    def tolist(self) -> Any:
        """Read all values, where they are."""
        return self._host.tolist()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self._host, memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._host.__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one operation where its operands are best brought together."""
        kwargs = kwargs or {}
        parts = func.decompose(*args, **kwargs)  # in inference mode composite operations arrive whole
        if parts is not NotImplemented:
            return parts
        stand_ins = _stand_ins((args, kwargs))
        device = stand_ins[0].device
        if func.overloadpacket is torch.ops.aten._to_copy:
            return func(args[0]._host, **{**kwargs, "device": kwargs.get("device") or device})
        written, viewed = _aliased(func, args, kwargs)
        if not (written or viewed or (func.overloadpacket in _ROWS and isinstance(args[0], HostWeight))):
            args, kwargs = _map(HostWeight._sent, (args, kwargs), HostWeight)
            return func(*args, **kwargs)
        args, kwargs = _map(_on_host, (args, kwargs))
        result = func(*args, **kwargs)
        if written:
            return _map(lambda tensor: next(s for s in written if s._host is tensor), result)
        return _map(lambda tensor: HostWeight(tensor, device) if viewed else tensor.to(device), result)

    def _sent(self) -> torch.Tensor:
        return self._host.to(self.device)


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    return tensor._host if isinstance(tensor, HostWeight) else tensor.to("cpu")


def _map(function: Any, values: Any, kind: type = torch.Tensor) -> Any:
    return tree_map_only(kind, function, values)


def _stand_ins(values: Any) -> list[HostWeight]:
    return [value for value in tree_leaves(values) if isinstance(value, HostWeight)]


def _aliased(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[list[HostWeight], list[HostWeight]]:
    """Return which of the stand-ins an operation writes to, and of which it returns a view."""
    written: list[HostWeight] = []
    viewed: list[HostWeight] = []
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None:
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            (written if argument.alias_info.is_write else viewed).extend(_stand_ins(value))
    return written, viewed
