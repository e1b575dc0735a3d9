"""Amounts of memory as people write them: `6GB`, `512 MB`, `50%`, and back."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from ..errors import PolicyError
from .hints import value_hint

_UNITS = {"B": 1, "KB": 1024, "MB": 1024**2, "GB": 1024**3, "TB": 1024**4}
AMOUNT_PATTERN = r"(?:([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*([KMGTkmgt]?[iI]?[bB])|([0-9]{16,28})\s*[bB])"
"""The grammar of an amount, for JSON Schema too. Letters in both cases: ignoring it, K would be the Kelvin sign.

More digits for bytes alone, so that the largest amount with a unit can be written in them.
"""
SHARE_PATTERN = r"(0{0,13}(?:100(?:\.0{1,9})?|[0-9]{1,2}(?:\.[0-9]{1,9})?))\s*%"
"""The grammar of a share, 0 to 100 %, for JSON Schema too."""

_AMOUNT = re.compile(AMOUNT_PATTERN)
_SHARE = re.compile(SHARE_PATTERN)
_ANY_SHARE = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,9})?\s*%")
_DIGITS = 15
_ALMOST = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9}|,[0-9]{1,2})?)(?:\s*([KMGTkmgt])[A-Za-z]*)?")


@dataclass(frozen=True)
class Budget:
    """Device memory that may be used: an amount, or a share of the card.

    Attributes:
        bytes: the amount in bytes, or None for a share.
        percent: the share of total device memory, 0–100, or None for an amount.
    """

    bytes: int | None = None
    percent: float | None = None

    def resolve(self, total: int) -> int:
        """Return the budget in bytes on a device with `total` bytes, never more than the device has."""
        wanted = self.bytes if self.bytes is not None else int(total * (self.percent or 0.0) / 100)
        return min(wanted, total)

    def spelled(self) -> str:
        """Return the budget so that `parse_budget` reads the very same one."""
        if self.bytes is None:
            return f"{self.percent:.9f}".rstrip("0").rstrip(".") + "%"
        units = ("TB", "GB", "MB", "KB")
        whole = (u for u in units if self.bytes % _UNITS[u] == 0 and self.bytes // _UNITS[u] < 10**_DIGITS)
        unit = next(whole, "B")
        return f"{self.bytes // _UNITS[unit]}{unit}"

    def __str__(self) -> str:
        return format_bytes(self.bytes) if self.bytes is not None else f"{self.percent:g}%"


def parse_budget(text: str, where: str) -> Budget:
    """Read a budget. `1GB` is 1024³ bytes, as ComfyUI and the drivers count.

    Raises:
        PolicyError: the text is not an amount with a unit, nor a share from 0 to 100 %.
    """
    share = _SHARE.fullmatch(text.strip())
    if share is not None:
        return Budget(percent=float(share[1]))
    amount = _AMOUNT.fullmatch(text.strip())
    if amount is not None:
        return Budget(bytes=_bytes(amount))
    if _ANY_SHARE.fullmatch(text.strip()):
        raise PolicyError(f"{where}: “{text[:60]}” is more than the whole card; a share is 0% to 100%")
    usual = "write auto, an amount such as 6GB, or a share such as 50%"
    hint = value_hint("budget", text) or _meant(text) or usual
    raise PolicyError(f"{where}: “{text[:60]}” is not a budget; {hint}")


def parse_size(text: str, where: str) -> int:
    """Read an amount of memory and return it in bytes.

    Raises:
        PolicyError: the text is not an amount with a unit.
    """
    match = _AMOUNT.fullmatch(text.strip())
    if match is None:
        raise PolicyError(
            f"{where}: “{text[:60]}” is not an amount of memory; {_meant(text) or 'write it as 12GB or 800MB'}"
        )
    return _bytes(match)


def format_bytes(count: int) -> str:
    """Return a short reading of a byte count in binary units: `1.5 GB`, `246 MB`, `12 KB`."""
    for unit in ("TB", "GB"):
        if count >= _UNITS[unit]:
            return f"{count / _UNITS[unit]:.2f} {unit}"
    for unit in ("MB", "KB"):
        if count >= _UNITS[unit]:
            return f"{count / _UNITS[unit]:.0f} {unit}"
    return f"{count} B"


def _bytes(amount: re.Match[str]) -> int:
    number, unit, in_bytes = amount.groups()
    # Fractions, because a float would lose the last bytes of a large amount.
    return int(in_bytes or Fraction(number) * _UNITS[unit.upper().replace("I", "")])


def _meant(text: str) -> str:
    """Return “did you mean …” for an amount with half a unit, or with none: then the unit that its size is usual in."""
    match = _ALMOST.fullmatch(text.strip())
    if match is None:
        return ""
    number = match[1].replace(",", ".")
    usual = "G" if float(number) < 1000 else "M" if float(number) < 10_000_000 else ""
    return f"did you mean {number}{(match[2] or usual).upper()}B?"
