"""The check itself: its parts in turn, each on as much as there is room for, and a sentence for what cannot be."""

from __future__ import annotations

import platform
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import psutil
import torch

from .. import log
from ..engine.check import (
    Check,
    Kinds,
    Setup,
    copy_to_device,
    disk_speed,
    engine_checks,
    kinds_on,
    mapped_equals_resident,
    memory_speed,
    overlaps,
    pinned,
    streamed_equals_resident,
)
from ..engine.clock import Clock
from ..policy.machine_check import MachineCheck, Verdict
from ..policy.quantities import format_bytes
from .ground import Extent, Ground
from .steps import Progress, Steps

T = TypeVar("T")
_OUT_OF_MEMORY = (torch.OutOfMemoryError, MemoryError)
_HOST_SHARE = 8
"""Of the memory that is free, one part in so many is used."""


def check_machine(ground: Ground, progress: Progress, extent: Extent | None = None) -> MachineCheck:
    """Measure what a machine can do; leaves nothing behind, however it ends.

    Args:
        ground: on what.
        progress: told how much of it is done, from 0 to 1, and what is done next; what it raises ends the check.
        extent: how much is moved.
    """
    run = _Run(ground, extent or Extent(), Steps(progress))
    try:
        with torch.inference_mode(False), torch.no_grad():
            return run.all()
    except BaseException as error:
        traceback.clear_frames(error.__traceback__)  # whoever keeps the error keeps no memory of the device
        raise
    finally:
        run.clean_up()


class _Run:
    """One check, and what it has found so far."""

    def __init__(self, ground: Ground, extent: Extent, steps: Steps) -> None:
        self._ground = ground
        self._extent = extent
        self._steps = steps
        self._is_cpu = ground.device.type == "cpu"
        self._found: dict[str, Any] = {}
        self._verdicts: list[Verdict] = []
        self._notes: list[str] = []

    def all(self) -> MachineCheck:
        self._part("disk", 0.3, self._disk)
        self._part("memory", 0.35, self._memory)
        if self._is_cpu:
            self._note(
                "The link to a device and copies beside computing were not measured, because the CPU computes here."
            )
            self._part("layers from their file", 0.95, self._mapped, "streamed equals resident")
        elif not _streams(self._ground.device):
            self._note(
                f"Copies to the device were not measured, because torch has no streams for {self._ground.device.type}."
            )
        else:
            self._part("the link", 0.55, self._link)
            self._part("streamed layers", 0.75, self._streamed, "streamed equals resident")
            self._part("the claims", 0.98, self._claims, "the claims about speed hold")
        self._steps.end()
        return self._result()

    def clean_up(self) -> None:
        """Give the memory of the device back that torch keeps for later."""
        if not self._is_cpu:
            getattr(_module_of(self._ground.device), "empty_cache", lambda: None)()

    def _part(self, name: str, until: float, run: Callable[[], None], claim: str = "") -> None:
        """Run one part; what goes wrong is a sentence, unless it is the person who ends it.

        Args:
            name: what is done.
            until: how much of all is done then.
            run: does it.
            claim: what does not hold if it fails, and not because of a disk.
        """
        self._steps.begin(name, until)
        try:
            run()
        except Exception as error:
            if error is self._steps.stopped:
                raise
            log.warning("check of this machine, %s: %s: %s", name, type(error).__name__, str(error))
            if claim and not isinstance(error, OSError):
                self._judge([Check(claim, f"no: {_why(error)}", False)])
            else:
                self._note(f"Not all of {name} was measured: {_why(error)}.")

    def _smaller(self, sizes: Iterable[T], run: Callable[[T], None], size_of: Callable[[T], str]) -> bool:
        """Run something with the first of some sizes for which there is room; tell whether there was one."""
        refused = ""
        for size in sizes:
            try:
                run(size)
            except _OUT_OF_MEMORY as error:
                if error is self._steps.stopped:
                    raise
                refused = refused or size_of(size)
            else:
                if refused:
                    self._note(f"There was no room for {refused}, so {size_of(size)} was used.")
                return True
            self.clean_up()
        return False

    # The parts ------------------------------------------------------------------------------------

    def _disk(self) -> None:
        size = min(self._extent.file, self._host_room())
        reads = disk_speed(self._ground.folder, size, self._steps.step)
        self._found.update(disk=reads.disk, page_cache=reads.cached)
        if reads.size < reads.wanted:
            wanted, used = format_bytes(reads.wanted), format_bytes(reads.size)
            self._note(f"The disk has no room for a file of {wanted}, so one of {used} was used.")
        if reads.disk is None:
            self._note(
                "The disk was not measured, because the system would not forget a file that had just been written."
            )

    def _memory(self) -> None:
        block = torch.ones(min(self._extent.large, self._host_room()), dtype=torch.uint8)
        self._found["memory"] = memory_speed(block, self._steps.step)

    def _link(self) -> None:
        largest = min(self._extent.large, self._host_room())
        if not self._smaller(_quarters(largest, self._extent.small), self._copies, format_bytes):
            self._note(
                f"The link was not measured, because the device has no room for {format_bytes(self._extent.small)}."
            )

    def _copies(self, size: int) -> None:
        """Measure copies of up to a size, from ordinary memory and from the same memory pinned."""
        device, step = self._ground.device, self._steps.step
        there = torch.empty(size, dtype=torch.uint8, device=device)
        block = torch.ones(size, dtype=torch.uint8)
        pageable = copy_to_device(block, there, self._extent.small, step)
        self._found["pageable_copies"] = tuple(sorted(pageable.seconds.items()))
        staged = overlaps(block, there, self._extent.side, step, pinned=False)
        self._found["overlap_staged"] = staged.share
        with pinned(block, device, self._ground.pins) as done:
            if not done:
                self._note("Pinned memory was not measured, because none can be pinned here.")
                return
            fast = copy_to_device(block, there, self._extent.small, step)
            self._found["pinned_copies"] = tuple(sorted(fast.seconds.items()))
            self._found["overlap"] = overlaps(block, there, self._extent.side, step, pinned=True).share

    def _streamed(self) -> None:
        def compare(width: int) -> None:
            kinds, ground, found = self._kinds(width), self._ground, list[Check]()
            step = self._steps.step
            try:
                for check in streamed_equals_resident(kinds, ground.device, ground.folder, ground.pins, step):
                    found.append(check)
            except _OUT_OF_MEMORY:
                raise  # all of it is compared again, smaller
            except Exception:
                self._judge(found)
                raise
            self._judge(found)

        widths = (self._extent.width, self._extent.width // 4)
        if not self._smaller(widths, compare, lambda width: f"layers of width {width}"):
            self._note("Streamed layers were not compared, because the device has no room for them.")

    def _mapped(self) -> None:
        kinds = self._kinds(self._extent.width)
        self._judge(mapped_equals_resident(kinds, self._ground.folder, self._steps.step))

    def _kinds(self, width: int) -> Kinds:
        kinds = kinds_on(self._ground.device, width)
        if kinds.refused:
            self._note(f"Not compared, because the device does not compute them: {', '.join(kinds.refused)}.")
        return kinds

    def _claims(self) -> None:
        if "pinned_copies" not in self._found:
            self._note("The claims about speed were not checked, because no memory can be pinned here.")
            return

        def check(setup: Setup) -> None:
            self._judge(engine_checks(setup))

        ground, step = self._ground, self._steps.step
        room = psutil.virtual_memory().available / 2
        setups = [Setup(ground.device, stack, ground.pins, step) for stack in self._extent.stacks]
        fitting = [setup for setup in setups if setup.geometry.bytes <= room]
        if not self._smaller(
            fitting, check, lambda setup: f"a stack of {format_bytes(setup.geometry.bytes)}"
        ):
            self._note(
                "The claims about speed were not checked, because there is no room for a stack of layers."
            )

    # ----------------------------------------------------------------------------------------------

    def _note(self, sentence: str) -> None:
        if sentence not in self._notes:
            self._notes.append(sentence)

    def _judge(self, checks: Iterable[Check]) -> None:
        self._verdicts += [Verdict(*check) for check in checks]

    def _host_room(self) -> int:
        """Return how many bytes of host memory one measurement may take, in whole megabytes."""
        megabytes = psutil.virtual_memory().available // _HOST_SHARE >> 20
        return int(max(1, megabytes)) << 20

    def _result(self) -> MachineCheck:
        device = self._ground.device
        return MachineCheck(
            device=_name_of(device),
            kind=device.type,
            device_bytes=_bytes_of(device),
            memory_bytes=psutil.virtual_memory().total,
            system=f"{platform.system()} {platform.release().partition('-')[0]}",
            python=platform.python_version(),
            torch=torch.__version__,
            comfyui=self._ground.comfyui,
            checked=int(time.time()),
            verdicts=tuple(self._verdicts),
            notes=tuple(self._notes),
            **self._found,
        )


def _why(error: Exception) -> str:
    """Return why something went wrong, without a word of anybody's files."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"it failed with {type(error).__name__}, see the console"


def _quarters(size: int, least: int) -> Iterable[int]:
    while size >= least:
        yield size
        size //= 4


def _streams(device: torch.device) -> bool:
    """Tell whether torch has the streams and the clock for a device that the streamer needs."""
    return Clock.of(device) is not None


def _name_of(device: torch.device) -> str:
    if device.type == "cpu":
        return "CPU" if sys.platform != "linux" else f"CPU with {psutil.cpu_count() or 1} threads"
    name = getattr(_module_of(device), "get_device_name", None)
    return str(name(device)) if name is not None else device.type


def _bytes_of(device: torch.device) -> int:
    if device.type == "cpu":
        return 0
    info = getattr(_module_of(device), "mem_get_info", None)
    return int(info(device)[1]) if info is not None else 0


def _module_of(device: torch.device) -> Any:
    """Return torch's module for a device, or None for one outside of torch, as that of DirectML."""
    try:
        return torch.get_device_module(device)
    except RuntimeError:
        return None
