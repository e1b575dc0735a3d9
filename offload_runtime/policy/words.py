"""From the text of a widget, a file or a command line to a typed value, with errors for people."""

from __future__ import annotations

import re
from typing import TypeGuard

from ..errors import PolicyError
from .arguments import Setting, Value
from .components import HostTier, Mode, Placement
from .hints import suggest, value_hint
from .quantities import parse_budget

UNSET = "auto"
"""The sentinel of every widget: the value that means "decide for me" and is never explicit."""

DEVICE_PATTERN = r"(?:(?![Cc][Pp][Uu]:)[A-Za-z]+:)?([0-9]{1,2})"
"""The grammar of a device, for JSON Schema too. Letters in both cases: ignoring it, K would be the Kelvin sign."""

SWITCH = {"on": True, "off": False, "true": True, "false": False, "yes": True, "no": False}
"""What people write for a switch."""

_DEVICE = re.compile(DEVICE_PATTERN)
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
        return _parse_choice(setting, written, where)
    if setting is Setting.STRICT:
        if written.lower() not in SWITCH:
            hint = value_hint(setting.key, written) or "write auto, on or off"
            raise PolicyError(f"{where}: “{written[:60]}” is not a switch; {hint}")
        return SWITCH[written.lower()]
    if setting is Setting.DEVICE:
        match = _DEVICE.fullmatch(written)
        if match is None:
            hint = value_hint(setting.key, written) or "write auto or its number, as in gpu:1"
            raise PolicyError(f"{where}: “{written[:60]}” is not a device; {hint}")
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


def _parse_choice(setting: Setting, value: str, where: str) -> Placement | Mode | HostTier:
    kind = _CHOICES[setting]
    try:
        return kind(value.lower())
    except ValueError:
        hint = value_hint(setting.key, value) or suggest(value, (member.value for member in kind))
        what = {Placement: "placement", Mode: "mode", HostTier: "host tier"}[kind]
        raise PolicyError(f"{where}: “{value[:60]}” is not a {what}; {hint}") from None
