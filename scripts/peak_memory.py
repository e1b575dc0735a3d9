"""How much memory a process needed at most, over a stretch of time."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

import psutil

SECONDS_BETWEEN_SAMPLES = 0.02


@dataclass(frozen=True)
class Peak:
    """Peaks in bytes.

    `resident` counts every page in memory. `anonymous` leaves out pages of mapped files, which the system may
    drop at any time; it is the highest of samples 20 ms apart, or None where the system does not tell the two
    apart. `exact` means that the kernel kept the resident maximum; otherwise that is sampled too.
    """

    resident: int
    anonymous: int | None
    exact: bool

    def __str__(self) -> str:
        text = f"{_mib(self.resident)} resident"
        if self.anonymous is not None:
            text += f", of which {_mib(self.anonymous)} at most not backed by files"
        return text


class PeakMemory:
    """Context manager: watch a process from enter to exit, then read `peak`."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._proc = Path("/proc", str(pid))
        self._stop = threading.Event()
        self._resident = self._anonymous = 0

    def __enter__(self) -> PeakMemory:
        self._exact = self._reset_kernel_peak()
        self._thread = threading.Thread(target=self._sample, name="peak-memory", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        status = self._status()
        exact = self._exact and "VmHWM" in status
        self.peak = Peak(
            resident=status["VmHWM"] if exact else self._resident,
            anonymous=self._anonymous or None,
            exact=exact,
        )

    def _reset_kernel_peak(self) -> bool:
        """Linux: writing 5 to clear_refs sets the recorded peak back to the present value."""
        try:
            (self._proc / "clear_refs").write_text("5")
        except OSError:
            return False
        return True

    def _sample(self) -> None:
        while True:
            try:
                self._resident = max(self._resident, self._process.memory_info().rss)
            except psutil.Error:
                return  # it ended; what was seen so far stands
            self._anonymous = max(self._anonymous, self._status().get("RssAnon", 0))
            if self._stop.wait(SECONDS_BETWEEN_SAMPLES):
                return

    def _status(self) -> dict[str, int]:
        """The byte counts of /proc/PID/status; empty where there is no such file."""
        try:
            lines = (self._proc / "status").read_text().splitlines()
        except OSError:
            return {}
        fields = (line.split() for line in lines)
        return {field[0].rstrip(":"): int(field[1]) * 1024 for field in fields if field[-1] == "kB"}


def _mib(count: int) -> str:
    return f"{count / 2**20:,.0f} MiB"
