"""The words of a policy: component names, groups and placements.

The groups follow SGLang-Diffusion's component groups: `default` expands to the encoders and the VAEs,
and `audio_vae` / `vocoder` belong to no group, because they are only ever placed by name.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from enum import Enum

from ..errors import PolicyError


class Placement(str, Enum):
    """Where a component lives while the workflow runs."""

    AUTO = "auto"
    RESIDENT = "resident"
    LAYERWISE = "layerwise"
    OFFLOAD = "offload"
    CPU = "cpu"

    def __str__(self) -> str:
        return self.value


class Mode(str, Enum):
    """What the automatic rules optimise for; `manual` switches them off."""

    AUTO = "auto"
    MANUAL = "manual"
    SPEED = "speed"
    MEMORY = "memory"

    def __str__(self) -> str:
        return self.value


GROUPS: dict[str, tuple[str, ...]] = {
    "dit": ("transformer",),
    "text_encoder": ("text_encoder",),
    "image_encoder": ("image_encoder",),
    "vae": ("vae", "video_vae", "condition_image_encoder"),
}
"""Group name → base names of its members."""

UNGROUPED = ("audio_vae", "vocoder")
"""Components that no group contains: they are placed by name only."""

COMPONENTS = tuple(name for members in GROUPS.values() for name in members) + UNGROUPED

DEFAULT_GROUPS = ("text_encoder", "image_encoder", "vae")
"""What the selector `default` stands for."""

SELECTORS = tuple(dict.fromkeys((*COMPONENTS, *GROUPS, "default", "all")))

_NUMBERED = re.compile(r"^(?P<base>.+?)_(?P<number>[1-9]\d*)$")


def base_name(component: str) -> str:
    """Drop the number of a repeated component: `text_encoder_2` → `text_encoder`."""
    match = _NUMBERED.match(component)
    return match["base"] if match else component


def group_of(component: str) -> str | None:
    """Return the group that holds a component, or None when it is placed by name only."""
    base = base_name(component)
    return next((group for group, members in GROUPS.items() if base in members), None)


def normalize_selector(selector: str) -> str:
    """Return the canonical spelling of a component, group, `default` or `all`.

    Raises:
        PolicyError: the name is unknown; the message lists the nearest valid names.
    """
    name = selector.strip().lower().replace("-", "_")
    if base_name(name) in SELECTORS:
        return name
    raise PolicyError(f"there is no component or group “{selector}”; {suggest(name, SELECTORS)}")


def specificity(selector: str, component: str) -> int:
    """Rank how closely a canonical selector names a component; 0 means that it does not.

    Exact name (3) beats group (2) beats `default` and `all` (1).
    """
    if selector == component:
        return 3
    group = group_of(component)
    if group is not None and selector == group:
        return 2
    if selector == "all" or (selector == "default" and group in DEFAULT_GROUPS):
        return 1
    return 0


def parse_choice(kind: type[Placement] | type[Mode], value: str, where: str) -> Placement | Mode:
    """Read a placement or a mode.

    Raises:
        PolicyError: the word is unknown; the message names the place and the nearest valid words.
    """
    try:
        return kind(value.strip().lower())
    except ValueError:
        words = [member.value for member in kind]
        raise PolicyError(
            f"{where}: “{value}” is not a {kind.__name__.lower()}; {suggest(value, words)}"
        ) from None


def suggest(name: str, valid: Iterable[str]) -> str:
    """Return “did you mean …” when something is near, else the list of what is possible."""
    valid = list(valid)
    near = difflib.get_close_matches(name.lower(), valid, n=3, cutoff=0.6)
    return f"did you mean {' or '.join(near)}?" if near else f"possible: {', '.join(valid)}"
