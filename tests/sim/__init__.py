"""A simulated accelerator: GPU behaviour as an ordinary unit test. See README.md in this folder.

Importing this changes nothing. Making the first :class:`Accelerator` registers the device type ``sim`` for
the rest of the process; everything else is patched only while one is switched on.
"""

from .accelerator import Accelerator, Measurement
from .order import (
    FreedWhileUsed,
    RaceFault,
    ReadBeforeArrival,
    SimulationFault,
    WriteWhileRead,
    WriteWhileWritten,
)
from .profile import PROFILES, Profile

__all__ = [
    "PROFILES",
    "Accelerator",
    "FreedWhileUsed",
    "Measurement",
    "Profile",
    "RaceFault",
    "ReadBeforeArrival",
    "SimulationFault",
    "WriteWhileRead",
    "WriteWhileWritten",
]
