"""Random operations on both layers, compared after each. `python -m tests.sim.aimdo.native [traces]`

Needs the `comfy-aimdo` package and a C compiler, on Linux. In a process of its own: the binary stays loaded.
"""

from __future__ import annotations

import ctypes
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from ... import Accelerator
from .. import vbar as simulated

PAGE = simulated.PAGE
CARD = 12 * PAGE
STEPS = 200
_OPERATIONS = (
    *["fault"] * 8, "hold", "release", "allocate", "free", "prioritize", "deprioritize", "set_watermark",
    "set_watermark_limit", "reset_limits", "free_memory",
)  # fmt: skip


def open_native() -> tuple[Any, Any]:
    """Build the stand-in driver, and start the binary on it; returns its Python face and the driver."""
    import comfy_aimdo.control as control

    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "libcuda.so.1"
        source = Path(__file__).with_name("driver.c")
        flags = ["-O0", "-w", "-fPIC", "-shared", "-Wl,-soname,libcuda.so.1"]
        subprocess.run(["cc", *flags, "-o", str(library), str(source)], check=True)
        driver = ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    driver.stand_in_capacity(ctypes.c_size_t(CARD))
    driver.stand_in_used.restype = ctypes.c_size_t
    driver.stand_in_missing.restype = ctypes.c_char_p
    if not (control.init("cuda", 0) and control.init_devices([0])):
        missing = driver.stand_in_missing().decode()
        raise RuntimeError(f"comfy-aimdo did not start on the stand-in driver; last missed: {missing}.")
    control.set_log_critical()
    import comfy_aimdo.model_vbar as native

    return native, driver


class Pair:
    """The same three ranges in both layers, and what is done to them."""

    def __init__(self, native: Any, driver: Any, sim: Accelerator, seed: int) -> None:
        self.native, self.driver, self.memory = native, driver, sim.memory
        self.random = random.Random(seed)
        self.ranges: list[tuple[Any, simulated.ModelVBAR]] = []
        self.allocations: list[tuple[Any, simulated.Allocation]] = []
        self.held: list[tuple[Any, simulated.Allocation]] = []
        self.buffers: list[tuple[ctypes.c_ulonglong, int]] = []
        for _ in range(3):
            self._add_range(self.random.randint(3, 14))

    def _add_range(self, pages: int) -> None:
        size = pages * PAGE * self.random.choice((1, 1, 3))
        self.ranges.append((self.native.ModelVBAR(size, 0), simulated.ModelVBAR(size, 0)))
        ours = self.ranges[-1]
        for _ in range(pages):
            wanted = self.random.choice(
                (PAGE // 4, PAGE // 2, PAGE, 2 * PAGE, self.random.randint(1, 2 * PAGE))
            )
            if ours[1].offset + wanted + 512 > size:
                break
            self.allocations.append((ours[0].alloc(wanted), ours[1].alloc(wanted)))

    def step(self, operation: str) -> None:
        """Do one thing to both, and compare what they answer."""
        getattr(self, f"_{operation}")()

    def compare(self) -> None:
        """Compare all that can be seen of both."""
        for native, ours in self.ranges:
            assert native.get_residency() == ours.get_residency()
            assert native.get_watermark() == ours.get_watermark()
            assert native.loaded_size() == ours.loaded_size()
        assert self.native.vbars_analyze(0) == simulated.vbars_analyze()
        assert self.driver.stand_in_used() == self.memory.live

    def _faulted(self) -> tuple[Any, simulated.Allocation] | None:
        pair = self.random.choice(self.allocations)
        answers = []
        for layer, alloc in zip((self.native, simulated), pair, strict=True):
            try:
                signature = layer.vbar_fault(alloc)
            except RuntimeError:
                signature = ["failed"]
            answers.append(None if signature is None else list(signature))
        assert answers[0] == answers[1]
        return None if answers[0] in (None, ["failed"]) else pair

    def _fault(self) -> None:
        if (pair := self._faulted()) is not None:
            self._unpin(pair)

    def _hold(self) -> None:
        if (pair := self._faulted()) is not None:
            self.held.append(pair)

    def _release(self) -> None:
        if self.held:
            self._unpin(self.held.pop(self.random.randrange(len(self.held))))

    def _unpin(self, pair: tuple[Any, simulated.Allocation]) -> None:
        self.native.vbar_unpin(pair[0])
        simulated.vbar_unpin(pair[1])

    def _allocate(self) -> None:
        """As torch's allocator does when its pools are empty."""
        size = self.random.randint(1, 4) * PAGE // 2
        pointer = ctypes.c_ulonglong()
        failed = self.driver.cuMemAllocAsync(ctypes.byref(pointer), ctypes.c_size_t(size), None)
        assert bool(failed) == (not self.memory.commit_under_pressure(size))
        if not failed:
            self.buffers.append((pointer, size))

    def _free(self) -> None:
        if self.buffers:
            pointer, size = self.buffers.pop(self.random.randrange(len(self.buffers)))
            self.driver.cuMemFreeAsync(pointer, None)
            self.memory.decommit(size)

    def _both(self, method: str, *arguments: int) -> None:
        native, ours = self.random.choice(self.ranges)
        assert getattr(native, method)(*arguments) == getattr(ours, method)(*arguments)

    def _prioritize(self) -> None:
        self._both("prioritize")

    def _deprioritize(self) -> None:
        self._both("deprioritize")

    def _set_watermark(self) -> None:
        self._both("set_watermark", self.random.randint(0, 16 * PAGE))

    def _set_watermark_limit(self) -> None:
        self._both("set_watermark_limit", self.random.randint(0, 6 * PAGE))

    def _reset_limits(self) -> None:
        self.native.vbars_reset_watermark_limits()
        simulated.vbars_reset_watermark_limits()

    def _free_memory(self) -> None:
        self._both("free_memory", self.random.choice((self.random.randint(0, 4 * PAGE), 1 << 60)))


def compare_trace(native: Any, driver: Any, seed: int) -> None:
    """Run one trace.

    Raises:
        AssertionError: the layers differ.
    """
    with Accelerator(cap=CARD, shapes=True) as sim:
        pair = Pair(native, driver, sim, seed)
        for number in range(STEPS):
            operation = pair.random.choice(_OPERATIONS)
            try:
                pair.step(operation)
                pair.compare()
            except AssertionError as difference:
                raise AssertionError(f"trace {seed} differs at step {number}, {operation}") from difference
        while pair.buffers:
            pair._free()
        del pair
        simulated.reset()


def main(arguments: list[str]) -> None:
    native, driver = open_native()
    traces = int(arguments[0]) if arguments else 200
    for seed in range(traces):
        compare_trace(native, driver, seed)
    print(f"{traces} traces of {STEPS} operations are the same in both layers.")  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
