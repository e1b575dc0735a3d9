"""The one simulated accelerator that is switched on, and what its parts share."""

from __future__ import annotations

import torch

from .host import HostMemory
from .machine import Machine
from .memory import DeviceMemory
from .profile import Profile

#: The index makes it equal to what tensors report.
DEVICE_TYPE = "sim"


class Runtime:
    """The state behind one ``Accelerator``."""

    def __init__(self, profile: Profile, cap: int, shapes_only: bool, strict_free: bool) -> None:
        self.profile = profile
        self.shapes_only = shapes_only
        #: Where the carried tensors live: real numbers on the CPU, or shapes only.
        self.inner_device = torch.device("meta" if shapes_only else "cpu")
        self.machine = Machine(profile)
        self.timeline = self.machine.timeline
        self.memory = DeviceMemory(self.machine, cap, strict_free)
        self.host = HostMemory(self.machine)

    def raise_pending(self) -> None:
        """Raise what a destructor found and could not."""
        if self.memory.unraised:
            raise self.memory.unraised.pop(0)


_active: Runtime | None = None


def active() -> Runtime:
    """The runtime in use.

    Raises:
        RuntimeError: no accelerator is switched on.
    """
    if _active is None:
        raise RuntimeError(
            "No simulated accelerator is switched on: use `with Accelerator() as sim:` or the fixture."
        )
    return _active


def activate(runtime: Runtime | None) -> None:
    global _active
    if runtime is not None and _active is not None:
        raise RuntimeError("A simulated accelerator is already switched on; one process simulates one card.")
    _active = runtime


def is_active() -> bool:
    return _active is not None
