"""The kinds of value that a setting can have: from what a person wrote to a value and back, with errors for people."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import Generic, TypeGuard, TypeVar

from ..errors import PolicyError
from .components import Word
from .hints import suggest, value_hint
from .quantities import AMOUNT_PATTERN, SHARE_PATTERN, Budget, parse_budget

UNSET = "auto"
"""The sentinel of every widget: the value that means "decide for me" and is never explicit."""

Value = Word | Budget | bool | int
V = TypeVar("V", bound=Value)
W = TypeVar("W", bound=Word)

_SWITCH = {"on": True, "off": False, "true": True, "false": False, "yes": True, "no": False}
_DEVICE_PATTERN = r"(?:(?![Cc][Pp][Uu]:)[A-Za-z]+:)?([0-9]{1,2})"
"""Letters in both cases: ignoring it, K would be the Kelvin sign."""
_DEVICE = re.compile(_DEVICE_PATTERN)


def is_set(text: object) -> TypeGuard[str | bool | int | float]:
    """Tell whether a raw value is explicit: `None`, nothing and `auto` in any case are not."""
    return text is not None and not (isinstance(text, str) and text.strip().lower() in ("", UNSET))


class Kind(ABC, Generic[V]):
    """A kind of value.

    Attributes:
        what: what such a value is called; `hints` knows other people's words for it by this name.
        choices: the words that a widget offers, `auto` first; none where a value is typed.
        words: the words that are read, `auto` among them, in any case.
        patterns: the grammar of what is read besides words, for JSON Schema too.
        offered: what editors of files offer besides nothing at all.
        numbers: the bare numbers that are read, or None.
    """

    what: str
    choices: tuple[str, ...] = ()
    words: tuple[str, ...] = (UNSET,)
    patterns: tuple[str, ...] = ()
    offered: tuple[str | bool, ...] = (UNSET,)
    numbers: range | None = None

    def parse(self, text: object, where: str) -> V:
        """Read a value.

        Args:
            text: what a person wrote; a number or boolean is read as it prints.
            where: what they call the place, for the error.

        Raises:
            PolicyError: it is not of this kind; the message says what is.
        """
        written = str(text).strip()
        value = self._read(written, where)
        if value is None:
            hint = value_hint(self.what, written) or self._hint(written)
            raise PolicyError(f"{where}: “{written[:60]}” is not a {self.what}; {hint}")
        return value

    @abstractmethod
    def spell(self, value: V) -> str:
        """Return a value so that `parse` reads the very same one."""

    @abstractmethod
    def _read(self, written: str, where: str) -> V | None:
        """Return the value, or None when it is none."""

    def _hint(self, written: str) -> str:
        """Return what to write instead, where nobody knows what is meant."""
        return f"write {UNSET}"


class Choice(Kind[W]):
    """One of a few words."""

    def __init__(self, words: type[W], what: str) -> None:
        self.what = what
        self._of = words
        self.choices = self.words = tuple(word.value for word in words)
        self.offered = self.words

    def spell(self, value: W) -> str:
        return str(value)

    def _read(self, written: str, where: str) -> W | None:
        return self._of(written.lower()) if written.lower() in self.words else None

    def _hint(self, written: str) -> str:
        return suggest(written, self.words)


class Switch(Kind[bool]):
    """On or off."""

    what = "switch"
    choices = (UNSET, "on", "off")
    words = (*_SWITCH, UNSET)
    offered = (True, False, "on", "off", UNSET)

    def spell(self, value: bool) -> str:
        return "on" if value else "off"

    def _read(self, written: str, where: str) -> bool | None:
        return _SWITCH.get(written.lower())

    def _hint(self, written: str) -> str:
        return "write auto, on or off"


class Device(Kind[int]):
    """An accelerator, as its number: `1`, or `gpu:1`."""

    what = "device"
    patterns = (_DEVICE_PATTERN,)
    numbers = range(100)

    def spell(self, value: int) -> str:
        return f"gpu:{value}"

    def _read(self, written: str, where: str) -> int | None:
        match = _DEVICE.fullmatch(written)
        return int(match[1]) if match is not None else None

    def _hint(self, written: str) -> str:
        return "write auto or its number, as in gpu:1"


class Amount(Kind[Budget]):
    """Device memory: an amount, or a share of the card."""

    what = "budget"
    patterns = (AMOUNT_PATTERN, SHARE_PATTERN)

    def spell(self, value: Budget) -> str:
        return value.spelled()

    def _read(self, written: str, where: str) -> Budget | None:
        return parse_budget(written, where)


SWITCH = Switch()
"""What a switch is that is no setting: whether a file is overwritten, or one of SGLang's."""
