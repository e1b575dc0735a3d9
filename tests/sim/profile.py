"""What a simulated card can do. Times are microseconds, sizes are bytes, rates are per second."""

from __future__ import annotations

from dataclasses import dataclass

import torch

MICROSECONDS = 1e6

#: Kernels narrower than fp32 reach the full rate; fp32 and integers a quarter of it.
_FULL_RATE = frozenset({torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2})


@dataclass(frozen=True)
class Profile:
    """One card and the link to it.

    The figures are round numbers in the right place, not measurements: trust the order of schemes and ratios,
    never an absolute time.
    """

    name: str
    total_memory: int
    link: float
    memory_bandwidth: float
    half_flops: float
    launch_us: float = 5.0
    light_call_us: float = 1.0
    kernel_us: float = 3.0
    copy_us: float = 8.0
    pageable_factor: float = 0.5
    host_memcpy: float = 10e9

    def kernel_time(self, moved: int, flops: int, dtype: torch.dtype | None) -> float:
        """Duration of one kernel that touches ``moved`` bytes: a roofline plus a fixed start."""
        peak = self.half_flops if dtype in _FULL_RATE else self.half_flops / 4
        return self.kernel_us + max(moved / self.memory_bandwidth, flops / peak) * MICROSECONDS

    def copy_time(self, moved: int, pinned: bool) -> float:
        """Duration of one transfer over the link, either way."""
        rate = self.link if pinned else self.link * self.pageable_factor
        return self.copy_us + moved / rate * MICROSECONDS

    def memcpy_time(self, moved: int) -> float:
        """Duration of a host-to-host copy, spent by the thread that makes it."""
        return moved / self.host_memcpy * MICROSECONDS


GIB = 1 << 30

PROFILES = {
    "rtx4090": Profile("rtx4090", 24 * GIB, link=25e9, memory_bandwidth=1.0e12, half_flops=160e12),
    "h200": Profile("h200", 141 * GIB, link=50e9, memory_bandwidth=4.3e12, half_flops=790e12),
    "rtx3060": Profile("rtx3060", 12 * GIB, link=12e9, memory_bandwidth=0.36e12, half_flops=51e12),
}


def profile_named(profile: str | Profile) -> Profile:
    """Look a profile up by name; a ``Profile`` is returned as it is."""
    if isinstance(profile, Profile):
        return profile
    if profile not in PROFILES:
        raise ValueError(f"No card profile is called {profile!r}. Known: {', '.join(sorted(PROFILES))}.")
    return PROFILES[profile]
