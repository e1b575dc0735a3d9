"""From the text of a widget, a file or a command line to a typed value, with errors for people."""

from __future__ import annotations

import re
from typing import TypeGuard

from ..errors import PolicyError
from .arguments import Setting, Value
from .components import HostTier, Mode, Placement
from .quantities import parse_budget
from .selectors import suggest

UNSET = "auto"
"""The sentinel of every widget: the value that means "decide for me" and is never explicit."""

_SWITCH = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}
_DEVICE = re.compile(r"(?:[a-z]+:)?([0-9]{1,2})")
_CHOICES: dict[Setting, type[Placement] | type[Mode] | type[HostTier]] = {
    Setting.PLACEMENT: Placement,
    Setting.MODE: Mode,
    Setting.HOST: HostTier,
}


def is_set(text: object) -> TypeGuard[str | bool | int | float]:
    """Tell whether a raw value is explicit: `None`, nothing and `auto` in any case are not."""
    return text is not None and not (isinstance(text, str) and text.strip().lower() in ("", UNSET))


def parse_value(setting: Setting, text: object, where: str) -> Value:
    """Read the value of a setting.

    Args:
        setting: what is set.
        text: what a person wrote; a number or boolean is read as it prints.
        where: what they call the place, for the error.

    Raises:
        PolicyError: the value is not one of the setting's; the message says which are.
    """
    written = str(text).strip()
    if setting in _CHOICES:
        return _parse_choice(_CHOICES[setting], written, where)
    if setting is Setting.STRICT:
        if written.lower() not in _SWITCH:
            raise PolicyError(f"{where}: “{written[:60]}” is not a switch; write auto, on or off")
        return _SWITCH[written.lower()]
    if setting is Setting.DEVICE:
        match = _DEVICE.fullmatch(written.lower())
        if match is None:
            raise PolicyError(
                f"{where}: “{written[:60]}” is not a device; write auto or its number, as in gpu:1"
            )
        return int(match[1])
    return parse_budget(written, where)


def spell_value(setting: Setting, value: Value) -> str:
    """Return a value so that `parse_value` reads the very same one."""
    if setting is Setting.STRICT:
        return "on" if value else "off"
    if setting is Setting.DEVICE:
        return f"gpu:{value}"
    if setting in (Setting.BUDGET, Setting.TOTAL_BUDGET):
        return value.spelled()  # type: ignore[union-attr]
    return str(value)


def _parse_choice(
    kind: type[Placement] | type[Mode] | type[HostTier], value: str, where: str
) -> Placement | Mode | HostTier:
    try:
        return kind(value.lower())
    except ValueError:
        words = [member.value for member in kind]
        what = {Placement: "placement", Mode: "mode", HostTier: "host tier"}[kind]
        raise PolicyError(f"{where}: “{value[:60]}” is not a {what}; {suggest(value, words)}") from None
