"""Settings of all floors."""

from __future__ import annotations

import os

from hypothesis import settings

# No test depends on the speed of the machine, and every run tries the same cases: who wants others names a seed.
settings.register_profile("same_cases", deadline=None, derandomize=True)
settings.register_profile("other_cases", deadline=None)
settings.load_profile("other_cases" if "LAYERWISE_SEED" in os.environ else "same_cases")

# Nor on what an earlier one has taught: who wants to learn says so, and where that is kept.
os.environ["LAYERWISE_OFFLOAD_LEARN"] = "off"
