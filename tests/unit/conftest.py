"""Settings of the unit floor."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("no_deadline", deadline=None)  # no test depends on the speed of the machine
settings.load_profile("no_deadline")
