"""How much memory a process needed at most, over a stretch of time."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

import psutil

SECONDS_BETWEEN_SAMPLES = 0.02


@dataclass(frozen=True)
class Peak:
    """Peaks in bytes, the highest of samples 20 ms apart.

    `resident` counts every page in memory. `anonymous` leaves out pages of mapped files, which the system may drop
    at any time; it is None where the system does not tell the two apart.
    """

    resident: int
    anonymous: int | None

    def __str__(self) -> str:
        files = "" if self.anonymous is None else f" ({_mib(self.anonymous)} without file pages)"
        return f"{_mib(self.resident)}{files}"


class PeakMemory:
    """Context manager: watch a process from enter to exit, then read `whole` and, after a `mark`, `since_mark`."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._proc = Path("/proc", str(pid))
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._samples: list[list[tuple[int, int]]] = [[(0, 0)]]

    def __enter__(self) -> PeakMemory:
        self._kernel_knows = self._reset_kernel_peak()
        self._thread = threading.Thread(target=self._sample, name="peak-memory", daemon=True)
        self._thread.start()
        return self

    def mark(self) -> None:
        """Begin a new stretch; the first mark of several counts."""
        with self._lock:
            if len(self._samples) == 1:
                self._samples.append([(0, 0)])

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.since_mark = self._peak(self._samples[-1])
        whole = self._peak([sample for stretch in self._samples for sample in stretch])
        # The kernel's own maximum misses nothing between two samples.
        kernel = self._status().get("VmHWM", 0) if self._kernel_knows else 0
        self.whole = Peak(max(whole.resident, kernel), whole.anonymous)

    @staticmethod
    def _peak(samples: list[tuple[int, int]]) -> Peak:
        resident, anonymous = (max(column) for column in zip(*samples, strict=True))
        return Peak(resident, anonymous or None)

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
                resident = self._process.memory_info().rss
            except psutil.Error:
                return  # it ended; what was seen so far stands
            sample = (resident, self._status().get("RssAnon", 0))
            with self._lock:
                self._samples[-1].append(sample)
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
