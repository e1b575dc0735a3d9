"""How one operator runs on the simulated device.

The carried tensors compute; around that this checks devices, tracks who uses which bytes, counts memory and
advances the clocks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .host import check_and_note, span
from .memory import Block
from .operators import Operator, aten, operator
from .runtime import Runtime, active
from .tensor import SimTensor
from .timeline import COMPUTE

Special = Callable[[Runtime, Any, tuple[Any, ...], dict[str, Any]], Any]

#: Operators that cross the link or need the host; filled by ``copies``.
SPECIAL: dict[Any, Special] = {}


def dispatch(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run one operator that has a simulated operand or asks for the simulated device."""
    runtime = active()
    with runtime.machine.lock:
        runtime.raise_pending()
        if (special := SPECIAL.get(func)) is not None:
            return special(runtime, func, args, kwargs)
        facts = operator(func)
        if facts.composite:
            # In inference mode composite operators arrive whole; their parts are what runs on a card.
            result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        return Call(runtime, func, facts).run(args, kwargs)


class Call:
    """One operator call: collects the operands, then runs and accounts for it."""

    def __init__(self, runtime: Runtime, func: Any, facts: Operator) -> None:
        self.runtime, self.func, self.facts = runtime, func, facts
        self.reads: list[SimTensor] = []
        self.writes: list[SimTensor] = []
        self.strangers: list[torch.Tensor] = []

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        written = self.facts.written
        inner_args = tuple(self._inner(value, position in written) for position, value in enumerate(args))
        inner_kwargs = {name: self._inner(value, name in written) for name, value in kwargs.items()}
        if inner_kwargs.get("pin_memory"):
            inner_kwargs["pin_memory"] = False
        self._refuse_strangers()
        result = self._compute(inner_args, inner_kwargs)
        if (device := kwargs.get("device")) is not None and device.type != "sim":
            return result  # made after a simulated tensor, elsewhere: empty_like(ours, device="cpu")
        fresh: list[SimTensor] = []
        wrapped = self._wrap(result, fresh)
        self._account(fresh, inner_args, inner_kwargs, result)
        for tensor in self.writes:
            refresh(self.runtime, tensor)
        return wrapped

    # Operands -------------------------------------------------------------------------------------

    def _inner(self, value: Any, written: bool) -> Any:
        """The operand the carried computation gets for ``value``."""
        if isinstance(value, SimTensor):
            if value._block.memory is not self.runtime.memory:
                raise RuntimeError("This tensor belongs to a simulated accelerator that was switched off.")
            (self.writes if written else self.reads).append(value)
            return value._inner
        if isinstance(value, torch.Tensor):
            self.strangers.append(value)
            return value.to("meta") if self.runtime.shapes_only and value.dim() else value
        if isinstance(value, (list, tuple)):
            return type(value)(self._inner(item, written) for item in value)
        if isinstance(value, torch.device) and value.type == "sim":
            return self.runtime.inner_device
        return value

    def _refuse_strangers(self) -> None:
        """CUDA takes a zero-dimensional host tensor as a number, host indices, and nothing else."""
        operands = self.reads + self.writes
        for tensor in self.strangers:
            if tensor.device.type == "cpu" and operands:
                if tensor.dim() == 0 and not any(tensor is target for target in self.writes):
                    continue
                if self.facts.host_indices and not tensor.is_floating_point():
                    continue
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, sim:0 and "
                f"{tensor.device}! (in {self.facts.name}, a tensor of shape {tuple(tensor.shape)})"
            )

    # Computation ----------------------------------------------------------------------------------

    def _compute(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.runtime.shapes_only and self.facts.synchronises:
            return self._unknown_result()
        try:
            return self.func(*args, **kwargs)
        except RuntimeError:
            if self.facts.allocates_only:
                # More than this machine has: let the simulated card refuse it in its own words.
                shape = self.func(*args, **{**kwargs, "device": torch.device("meta")})
                self.runtime.memory.allocate(shape.untyped_storage().nbytes())
            raise

    def _unknown_result(self) -> Any:
        """Shapes carry no data: a value the host asks for reads as zero, and equality as true."""
        if self.func is aten.equal.default:
            return True
        raise NotImplementedError(
            f"{self.facts.name} depends on data, which shape-only mode does not have: use the numerics mode."
        )

    def _wrap(self, result: Any, fresh: list[SimTensor]) -> Any:
        """Simulated tensors for the results: an operand itself, a view of its memory, or new memory."""
        if isinstance(result, torch.Tensor):
            return self._wrap_tensor(result, fresh)
        if isinstance(result, (list, tuple)):
            return type(result)(self._wrap(item, fresh) for item in result)
        return result

    def _wrap_tensor(self, result: torch.Tensor, fresh: list[SimTensor]) -> SimTensor:
        storage = result.untyped_storage()._cdata
        for operand in (*self.writes, *self.reads, *fresh):
            if operand._inner is result:
                return operand
            if operand._inner.untyped_storage()._cdata == storage:
                return SimTensor.view_of(operand, result)
        block = self.runtime.memory.allocate(result.untyped_storage().nbytes())
        tensor = SimTensor(result, block)
        fresh.append(tensor)
        return tensor

    # Accounting -----------------------------------------------------------------------------------

    def _account(
        self, fresh: list[SimTensor], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        machine, facts = self.runtime.machine, self.facts
        if facts.allocates_only or (not fresh and not self.writes and not facts.synchronises):
            machine.spend(machine.profile.light_call_us)
            return
        stream, access = machine.begin(facts.name)
        for tensor in self.reads:
            note_use(tensor, False, access, stream.clock)
        for tensor in (*self.writes, *fresh):
            note_use(tensor, True, access, stream.clock)
        flops = facts.flops(*args, **kwargs, out_val=result) if facts.flops else 0
        moved = self._bytes_moved(fresh)
        dtype = self._compute_dtype(fresh)
        machine.run(stream, COMPUTE, facts.name, machine.profile.kernel_time(moved, flops, dtype), moved)
        if facts.synchronises:
            machine.wait_for_stream(stream, facts.name)

    def _bytes_moved(self, fresh: list[SimTensor]) -> int:
        made = sum(map(_bytes_touched, fresh))
        reads = [_bytes_touched(tensor) for tensor in self.reads]
        if self.facts.gathers and reads:
            reads[0] = min(reads[0], made)
        return made + sum(reads) + sum(map(_bytes_touched, self.writes))

    def _compute_dtype(self, fresh: list[SimTensor]) -> torch.dtype | None:
        operands = self.reads or self.writes or fresh
        return operands[0].dtype if operands else None


def _bytes_touched(tensor: SimTensor) -> int:
    """An expanded tensor is read from fewer bytes than it has elements."""
    return min(tensor.numel() * tensor.element_size(), tensor._block.record.wanted)


def note_use(tensor: SimTensor, writes: bool, access: Any, clock: Any) -> None:
    """Check and record one use of the bytes behind a tensor."""
    record = tensor._block.record
    low, high = span(tensor._inner)
    check_and_note(record.history, low, min(high, record.history.size), writes, access, clock, record)


def refresh(runtime: Runtime, tensor: SimTensor) -> None:
    """Follow an operand that was resized or restrided in place."""
    inner = tensor._inner
    same = inner.size() == tensor.size() and inner.stride() == tensor.stride()
    grown = inner.untyped_storage().nbytes() > tensor._block.record.wanted
    if same and not grown:
        return
    block: Block = tensor._block
    if grown:
        block = runtime.memory.allocate(inner.untyped_storage().nbytes())
    twin = SimTensor(inner, block)
    torch._C._swap_tensor_impl(tensor, twin)
    tensor._block = block
